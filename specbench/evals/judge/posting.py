"""One HTTP POST that ends by a deadline, whatever the other side does."""

from __future__ import annotations

import functools
import http.client
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from specbench.common.redirects import NoRedirect

LARGEST = 4 << 20  # bytes of an answer; a judgment has a few thousand
_LARGEST_ERROR = 1 << 16  # bytes of an answer that is none; the rest is not read. Headers: http.client takes 6.5 MB
_LOOK_S = 0.1  # between looks at the clock: a wait without end may miss a Ctrl-C that comes just before it


class Broken(Exception):
    """What came is no whole answer."""


@dataclass(frozen=True)
class Reply:
    """What came back.

    Attributes:
        status: the HTTP status.
        body: whole for 200 to 299, else at most its first 64 KiB.
    """

    status: int
    body: bytes


class GivenUp(Exception):
    """Nobody wants the answer any more."""


def post(
    url: str,
    body: bytes,
    headers: dict[str, str],
    timeout_s: float,
    *,
    proxies: bool,
    over: threading.Event | None = None,
) -> Reply:
    """Sends ``body`` and takes the answer, of whatever status; follows nothing elsewhere.

    Resolving a name cannot be broken off, and every other limit of a socket starts anew with each byte. So a thread
    does all of it, and is given up at the deadline: its connection is shut down, which ends it wherever it is, and over
    one that is made later nothing is sent.

    Args:
        url: web address.
        body: what to send.
        headers: with it.
        timeout_s: seconds for the whole of it.
        proxies: take those that the environment names.
        over: set when nobody wants the answer any more.

    Raises:
        GivenUp: nobody does.
        TimeoutError: there was no whole answer by then.
        Broken: the answer broke off, or is too large.
        OSError, http.client.HTTPException, ValueError: whatever else went wrong; the text may hold a header.
    """
    exchange = _Exchange(urllib.request.Request(url, body, headers), time.monotonic() + timeout_s, proxies)
    exchange.start()
    try:
        while not exchange.done.wait(max(0.0, min(_LOOK_S, exchange.until - time.monotonic()))):
            if time.monotonic() >= exchange.until:
                raise TimeoutError
            if over is not None and over.is_set():
                raise GivenUp
    finally:  # a Ctrl-C too
        exchange.give_up()
    if exchange.error is not None:
        raise exchange.error
    assert exchange.reply is not None
    return exchange.reply


class _Exchange(threading.Thread):
    """A request and its answer.

    Attributes:
        until: the deadline, as ``time.monotonic()`` has it.
        done: set when there is a reply or an error.
    """

    def __init__(self, request: urllib.request.Request, until: float, proxies: bool) -> None:
        super().__init__(name="judge", daemon=True)  # a name server that is silent does not hold up the exit
        self.until = until
        self.done = threading.Event()
        self.reply: Reply | None = None
        self.error: Exception | None = None
        self._request = request
        self._proxies = proxies
        self._lock = threading.Lock()
        self._given_up = False
        self._twin: socket.socket | None = None

    def run(self) -> None:
        try:
            self.reply = self._exchange()
        except Exception as error:
            self.error = error
        finally:
            self.done.set()

    def _exchange(self) -> Reply:
        none = [] if self._proxies else [urllib.request.ProxyHandler({})]
        opener = urllib.request.build_opener(NoRedirect, _Http(self), _Https(self), *none)
        try:
            with opener.open(self._request, timeout=self._left()) as answer:
                content = _beginning(answer, LARGEST + 1)
                if len(content) > LARGEST:
                    raise Broken(f"more than {LARGEST >> 20} MiB")
                if answer.length:
                    raise Broken("the connection broke off")
                return Reply(answer.status, content)
        except urllib.error.HTTPError as error:
            with error:
                try:
                    return Reply(error.code, _beginning(error, _LARGEST_ERROR))
                except (OSError, http.client.HTTPException, ValueError):  # its status says enough
                    return Reply(error.code, b"")

    def _left(self) -> float:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def connect(self, address: tuple[str, int], timeout: Any = None, source: Any = None) -> socket.socket:
        """As ``socket.create_connection``, within what is left of the time."""
        made = socket.create_connection(address, self._left(), source)
        with self._lock:
            if self._given_up:
                made.close()
                raise TimeoutError
            # A second descriptor of the connection: TLS takes the first one into an object of its own.
            self._twin = made.dup()
        return made

    def give_up(self) -> None:
        """Ends the thread if it still runs."""
        with self._lock:
            self._given_up = True
            if self._twin is not None:
                with suppress(OSError):  # the other side was first
                    self._twin.shutdown(socket.SHUT_RDWR)
                self._twin.close()
                self._twin = None


def _beginning(answer: Any, most: int) -> bytes:
    """The first ``most`` bytes of a body, by pieces: ``read`` has no bound for a chunk of a size below nought."""
    content = bytearray()
    while len(content) < most and (part := answer.read1(1 << 16)):
        content += part
    return bytes(content[:most])


def _connection(kind: Any, exchange: _Exchange, host: str, **options: Any) -> Any:
    made = kind(host, **options)
    made._create_connection = exchange.connect  # http.client's own place for another way to connect
    return made


class _Http(urllib.request.HTTPHandler):
    def __init__(self, exchange: _Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(functools.partial(_connection, http.client.HTTPConnection, self._exchange), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, exchange: _Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(functools.partial(_connection, http.client.HTTPSConnection, self._exchange), req)
