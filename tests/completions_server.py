"""A server with ``/v1/completions`` on this machine, after vLLM's; what is proven against it, is proven of the fake.

Its model's next token is the one behind, modulo :data:`VOCABULARY`, and its text is a letter a token.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

VOCABULARY = 26
EOS = 25

_COUNTERS = {
    "vllm:spec_decode_num_drafts_total": "drafts",
    "vllm:spec_decode_num_draft_tokens_total": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted",
    "vllm:generation_tokens_total": "tokens",
    "vllm:inter_token_latency_seconds_count": "steps",
}

Stream = Callable[[BaseHTTPRequestHandler, dict[str, Any]], object]


def text_of(ids: Any) -> str:
    """A letter a token."""
    return "".join(chr(ord("a") + token) for token in ids)


class Letters:
    """A tokenizer of letters."""

    eos_token_id = EOS

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter.lower()) - ord("a") for letter in text]}

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        return text_of(ids)


MODEL: Any = SimpleNamespace(tokenizer=Letters(), pad_id=0)


@dataclass
class Completing:
    """What the server does and was asked.

    Attributes:
        ids: it takes and gives token ids.
        speculates: a step brings three tokens, and ``/metrics`` says so.
        others: tokens that somebody else had from it between two answers of ours.
        models: that it lists.
        stream: in place of an answer.
    """

    url: str = ""
    ids: bool = True
    speculates: bool = False
    others: int = 0
    models: list[str] = field(default_factory=lambda: ["tiny"])
    stream: Stream | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTERS.values(), 0))
    over: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)


def begin(handler: BaseHTTPRequestHandler, code: int = 200) -> None:
    """Headers of a stream that ends with its connection."""
    handler.send_response(code)
    handler.send_header("Content-Type", "text/event-stream")
    handler.end_headers()


def event(handler: BaseHTTPRequestHandler, said: Any) -> None:
    """One event."""
    handler.wfile.write(f"data: {json.dumps(said)}\n\n".encode())
    handler.wfile.flush()


def whole(handler: BaseHTTPRequestHandler, code: int, body: bytes) -> None:
    """An answer that is no stream."""
    handler.send_response(code)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@contextmanager
def completing(**how: Any) -> Iterator[Completing]:
    """A server on a free port of this machine."""
    made = Completing(**how)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.headers.append(dict(self.headers))
            if self.path == "/v1/models":
                whole(self, 200, json.dumps({"data": [{"id": name} for name in made.models]}).encode())
            elif self.path == "/version":
                whole(self, 200, b'{"version": "0.32.0"}')
            elif self.path == "/metrics" and made.ids:
                made.counted["tokens"] += made.others
                lines = [f'{name}{{engine="0"}} {made.counted[key]}.0' for name, key in _COUNTERS.items()]
                spare = lines if made.speculates else lines[3:]
                running = 'vllm:num_requests_running{engine="0"} 0.0'
                whole(self, 200, "\n".join(["# HELP of them", *spare, running]).encode())
            else:
                whole(self, 404, b"there is no such page")

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.asked.append(asked)
            made.headers.append(dict(self.headers))
            with suppress(OSError):
                if made.stream is not None:
                    made.stream(self, asked)
                else:
                    _answer(self, made, asked)

        def log_message(self, *args: Any) -> None: ...

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None: ...

    server = Quiet(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    made.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield made
    finally:
        made.over.set()
        server.shutdown()
        server.server_close()


def _answer(handler: BaseHTTPRequestHandler, made: Completing, asked: dict[str, Any]) -> None:
    prompt = asked["prompt"]
    if isinstance(prompt, list) and not made.ids:
        whole(handler, 400, b'{"error": {"message": "prompt: a list is no text"}}')
        return
    known = list(prompt) if isinstance(prompt, list) else Letters()(prompt)["input_ids"]
    stops = set(asked.get("stop_token_ids", [EOS] if not made.ids else []))
    begin(handler)
    out: list[int] = []
    reason = None
    while reason is None:
        new: list[int] = []
        for _ in range(3 if made.speculates and out else 1):
            new.append((known[-1] + 1 + len(out) + len(new)) % VOCABULARY)
            if new[-1] in stops:
                reason = "stop"
            elif len(out) + len(new) == asked["max_tokens"]:
                reason = "length"
            if reason:
                break
        if out:
            made.counted["steps"] += 1
            if made.speculates:
                made.counted["drafts"] += 1
                made.counted["draft_tokens"] += 4
                made.counted["accepted"] += len(new) - 1
        said: dict[str, Any] = {"index": 0, "text": text_of(new), "finish_reason": reason}
        if made.ids:
            said |= {"token_ids": new, "prompt_token_ids": None if out else known}
        elif reason == "stop":
            said["text"] = text_of(new[:-1])
        out += new
        made.counted["tokens"] += len(new)
        try:
            event(handler, {"choices": [said]})
            if asked["max_tokens"] > 1000:
                made.over.wait(0.01)
        except OSError:
            made.left.set()
            raise
    event(handler, {"choices": [], "usage": {"completion_tokens": len(out)}})
    handler.wfile.write(b"data: [DONE]\n\n")
