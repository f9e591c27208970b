"""An OpenAI-compatible endpoint on this machine that answers well, badly, late, or not at all."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]


class Server:
    """Attributes:
    url: what ``--base-url`` takes.
    asked: bodies of the requests so far; ``headers`` and ``paths`` theirs.
    answer: how the next request is answered.
    """

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.answer: Answer = says("[[7]]")
        self.over = threading.Event()  # ends whatever is still being answered slowly
        self.url = ""


def send(handler: BaseHTTPRequestHandler, code: int, body: bytes, **headers: str) -> None:
    """A whole answer."""
    handler.send_response(code)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def completion(content: Any) -> bytes:
    """The body of a chat completion."""
    return json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": content}}]}).encode()


def says(content: Any) -> Answer:
    """Answers as it should."""
    return lambda handler, body: send(handler, 200, completion(content))


def replies(code: int, body: bytes, **headers: str) -> Answer:
    """Answers with this status and body."""
    return lambda handler, asked: send(handler, code, body, **headers)


def in_any_order(answer: Answer, seed: int, most_s: float = 0.05) -> Answer:
    """Answers after a while that is drawn: those asked first are not always answered first."""
    drawn = random.Random(seed)

    def late(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        time.sleep(drawn.uniform(0, most_s))
        answer(handler, body)

    return late


@contextmanager
def serving() -> Iterator[Server]:
    """A server on a free port of this machine."""
    made = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.asked.append(body)
            made.headers.append(dict(self.headers))
            made.paths.append(self.path)
            with suppress(OSError):  # whoever asked may have gone
                made.answer(self, body)

        def do_GET(self) -> None:
            made.paths.append(f"GET {self.path}")
            send(self, 200, completion("[[1]]"))

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield made
    finally:
        made.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
