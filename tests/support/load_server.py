"""A completions server in a process of its own, for many requests at once: keep-alive, chunked, any pace."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

#: Stands in for the run's model where no text is tokenised.
MODEL: Any = SimpleNamespace(tokenizer=None, vocab_size=1 << 20)


@dataclass
class LoadServer:
    url: str
    process: subprocess.Popen[str]

    def connections(self) -> int:
        """Connections on which requests came so far."""
        with urlopen(f"{self.url}/connections") as answer:
            return int(answer.read())

    def kill(self) -> None:
        self.process.kill()


@contextmanager
def load_server(
    events: int, gap: float, *, closes_idle: float = 60.0, slots: int = 1 << 20, pause: str = "", mute: int = 0
) -> Iterator[LoadServer]:
    """A server whose answers are ``events`` events of one token, ``gap`` seconds apart.

    Args:
        closes_idle: seconds after which it closes a connection without a request.
        slots: answers at the same time; others wait.
        mute: number of the request, from 1, that it never answers; 0 is none.
        pause: "AT:SECONDS", when after its first request it sends nothing for some time.
    """
    how = json.dumps({"events": events, "gap": gap, "idle": closes_idle, "slots": slots, "pause": pause, "mute": mute})
    process = subprocess.Popen([sys.executable, __file__, how], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    try:
        yield LoadServer(f"http://127.0.0.1:{port}", process)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def _serve(how: dict[str, Any]) -> None:
    used = 0
    slots = asyncio.Semaphore(how["slots"])
    pause_at, _, pause_s = how["pause"].partition(":")
    began: list[float] = []

    async def answer(out: asyncio.StreamWriter, budget: int) -> None:
        loop = asyncio.get_running_loop()
        began.append(loop.time())
        out.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        count = min(how["events"], budget)
        if len(began) == how["mute"]:
            await asyncio.sleep(60)
        async with slots:
            for at in range(count):
                if how["gap"]:
                    await asyncio.sleep(how["gap"])
                if pause_s and 0 <= (since := loop.time() - began[0] - float(pause_at)) < float(pause_s):
                    await asyncio.sleep(float(pause_s) - since)
                done = "length" if at == count - 1 else None
                chunk({"choices": [{"index": 0, "text": "a", "token_ids": [at], "finish_reason": done}]}, out)
        end = b"data: [DONE]\n\n"
        out.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(end), end))
        await out.drain()

    def chunk(event: Any, out: asyncio.StreamWriter) -> None:
        data = f"data: {json.dumps(event)}\n\n".encode()
        out.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def connected(into: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        nonlocal used
        first = True
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError, asyncio.TimeoutError):
            while True:
                head = (await asyncio.wait_for(into.readuntil(b"\r\n\r\n"), how["idle"])).decode()
                if head.startswith("GET"):
                    body = str(used).encode()
                    out.write(
                        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body)
                    )
                    await out.drain()
                    break
                used, first = used + first, False
                length = next(
                    int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("Content-Length")
                )
                asked = json.loads(await into.readexactly(length))
                await answer(out, asked["max_tokens"])
        out.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=4096)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(json.loads(sys.argv[1])))
