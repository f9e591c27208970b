"""Servers that say something now and then, and never come to an end."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

ENDLESS_S = 8.0  # as long as one goes on
PACE_S = 0.05

Act = Callable[[socket.socket, threading.Event], None]


@contextmanager
def listening(act: Act) -> Iterator[int]:
    """Port of a server that does ``act`` with every connection."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    made, _ = server.accept()
                    threading.Thread(target=one, args=(made,), daemon=True).start()

        def one(made: socket.socket) -> None:
            with made, suppress(OSError):
                act(made, over)

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)


def dribbles(begin: bytes, again: bytes = b"x") -> Act:
    """Reads the request, says ``begin`` at once and then ``again`` and again."""

    def act(made: socket.socket, over: threading.Event) -> None:
        made.recv(1 << 16)
        made.sendall(begin)
        until = time.monotonic() + ENDLESS_S
        while not over.wait(PACE_S) and time.monotonic() < until:
            made.sendall(again)

    return act


def silent(made: socket.socket, over: threading.Event) -> None:
    over.wait(ENDLESS_S)


def status(code: int, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {code} So", *headers, "", ""]).encode()


def floods(begin: bytes, again: bytes) -> Act:
    """Says the same as :func:`dribbles` as fast as it can."""
    block = again * (1 + (1 << 16) // len(again))

    def act(made: socket.socket, over: threading.Event) -> None:
        made.recv(1 << 16)
        made.sendall(begin)
        until = time.monotonic() + ENDLESS_S
        while not over.is_set() and time.monotonic() < until:
            made.sendall(block)

    return act


#: Where in an answer a server may be slow.
PHASES: dict[str, Act] = {
    "silent": silent,
    "status line": dribbles(b"HTTP/1.1 200 "),
    "a header": dribbles(b"HTTP/1.1 200 OK\r\nX-Long: "),
    "100 forever": dribbles(b"", status(100, "X: y")),
    "a chunk's size": dribbles(status(200, "Transfer-Encoding: chunked") + b"1;"),
    "status lines at full speed": floods(b"", status(100, "X: y")),
    "trailers at full speed": floods(status(200, "Transfer-Encoding: chunked") + b"0\r\n", b"X: y\r\n"),
    "trailers": dribbles(status(200, "Transfer-Encoding: chunked") + b"0\r\n", b"X: y\r\n"),
    **{f"body of {code}": dribbles(status(code, "Content-Length: 1000")) for code in (200, 400, 401, 500, 302)},
    **{f"endless body of {code}": dribbles(status(code)) for code in (200, 400, 503)},
    **{
        f"chunks of {code}": dribbles(status(code, "Transfer-Encoding: chunked"), b"1\r\nx\r\n")
        for code in (200, 401, 500)
    },
}

HANDSHAKE = b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc"  # a TLS record of 16 KiB, which never gets there
