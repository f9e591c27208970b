"""Send many requests to a server at once from one thread, and time what arrives.

A thread or task per request would cost more processor time than the requests themselves and delay the clock readings of
others, so one :mod:`selectors` loop serves all connections. When several are ready, all are read, each with its time,
before the first is parsed. A connection is used again after its answer. Proxies are not used.
"""

from __future__ import annotations

import itertools
import json
import select
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from specbench.backends.protocol import Arrival, EngineCounters, Question, Several
from specbench.backends.reply import Reply
from specbench.backends.streaming import Events, Lost, Server
from specbench.common import EngineFault, one_line, ssl_context

_READ = 1 << 16
_LOOK_S = 10.0
_MOST_SELECTED = 1024  # select() takes only smaller file numbers
_MOST_HEADERS, _MOST_REFUSED = 1 << 16, 1 << 16
_MANY = "it cannot hold more connections ({why}); raise the limit of open files (ulimit -n) or lower the rate"


class HttpSeveral(Several):
    """Requests to one server, each on a connection of its own while it runs.

    Args:
        reply: makes the request for a question.
        idle: returns when the server has noticed that requests were given up.
    """

    def __init__(
        self, server: Server, reply: Callable[[Question], Reply], idle: Callable[[], object] = lambda: None
    ) -> None:
        self._server, self._reply, self._idle = server, reply, idle
        self._selector = selectors.DefaultSelector()
        self._numbers = itertools.count(1)
        self._running: dict[int, _Connection] = {}
        self._ended: dict[int, Reply] = {}
        self._free: list[_Connection] = []
        self._address = _Address(server)
        self._heard = time.monotonic()

    def submit(self, question: Question) -> int:
        number, reply = next(self._numbers), self._reply(question)
        if not self._running:
            self._heard = time.monotonic()
        self._send(number, reply)
        return number

    def poll(self, seconds: float) -> Sequence[tuple[int, Arrival | None]]:
        left = self._heard + self._server.timeout - time.monotonic()
        if self._running and left <= 0:
            raise EngineFault(f"it stalled: {len(self._running)} requests got no data for {self._server.timeout:g} s")
        self._wait(min(seconds, left) if self._running else seconds)
        ready = self._selector.select(0)
        read = [(key.data, key.data.read()) for key, _ in ready]  # all clocks before any parsing
        found: list[tuple[int, Arrival | None]] = []
        for connection, (at_ns, data) in read:
            found += self._taken(connection, at_ns, data)
        if any(arrival for _, arrival in found):
            self._heard = time.monotonic()
        return found

    def _wait(self, seconds: float) -> None:
        """Wait until a connection is ready. Selectors round to milliseconds, too coarse for times of arrival."""
        if seconds > 0:
            fileno = getattr(self._selector, "fileno", None)
            if fileno is not None and fileno() < _MOST_SELECTED:
                select.select([fileno()], [], [], seconds)
            else:
                self._selector.select(seconds)

    def give_up(self, number: int) -> None:
        if connection := self._running.pop(number, None):
            assert connection.reply is not None
            self._ended[number] = connection.reply
            self._drop(connection)

    def counters(self, number: int) -> EngineCounters:
        return self._ended.pop(number).counters()

    def close(self, wait: bool = True) -> None:
        begun = [*self._running]
        for number in begun:
            self.give_up(number)
        for key in [*self._selector.get_map().values()]:
            self._drop(key.data)
        self._free.clear()
        if begun and wait:
            self._idle()

    def _send(self, number: int, reply: Reply) -> None:
        connection = self._free.pop() if self._free else self._connect()
        self._running[number] = connection
        try:
            connection.send(number, reply, self._address.request(reply, self._server.key))
        except OSError:  # the server had closed it while it was free
            self._drop(connection)
            self._send(number, reply)
        else:
            self._watch(connection)

    def _connect(self) -> _Connection:
        try:
            return _Connection(self._address)
        except OSError as error:
            why = error.strerror or str(error)
            if error.errno in (23, 24):  # ENFILE, EMFILE
                raise EngineFault(_MANY.format(why=why)) from None
            raise self._server.lost(why, reached=False) from None

    def _watch(self, connection: _Connection) -> None:
        """Wait for what a connection needs next: to be read, or also to be written."""
        try:
            key = self._selector.get_key(connection.socket)
        except KeyError:
            self._selector.register(connection.socket, connection.needs, connection)
        else:
            if key.events != connection.needs:
                self._selector.modify(connection.socket, connection.needs, connection)

    def _drop(self, connection: _Connection) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        connection.socket.close()
        if connection in self._free:
            self._free.remove(connection)

    def _taken(self, connection: _Connection, at_ns: int, data: bytes | None) -> list[tuple[int, Arrival | None]]:
        """Take what was read from a connection: bytes, b"" if it was closed, None if nothing is there yet."""
        reply, number = connection.reply, connection.number
        if data is None:
            if connection.socket.fileno() >= 0:
                self._watch(connection)
            return []
        if reply is None or self._running.get(number) is not connection:  # free, given up, or reading its last bytes
            if not data or not connection.rest(data):
                self._drop(connection)
            elif connection.whole and reply is not None:
                self._release(connection)
            return []
        if not data and connection.used and not connection.begun:  # the server had closed it while it was free
            self._drop(connection)
            self._send(number, reply)
            return []
        if not data and connection.error:
            raise self._server.lost(connection.error, connection.begun)
        try:
            body = connection.body(data)
        except ValueError as error:
            raise Lost(f"its connection was lost ({one_line(self._server.scrub(str(error)), 120)})") from None
        if connection.status not in (0, 200):
            if data and not connection.whole and len(connection.refused) < _MOST_REFUSED:
                return []
            raise self._server.refusal(reply.path, connection.status, bytes(connection.refused))
        found: list[tuple[int, Arrival | None]] = []
        for event in connection.events.take(body) if body else ():
            found += [(number, arrival) for arrival in reply.take(at_ns, event)]
            if reply.finished:
                break
        if reply.finished:
            del self._running[number]
            self._ended[number] = reply
            found.append((number, None))
            if connection.whole:
                self._release(connection)
        elif connection.whole or not data or connection.events.ended:
            connection.events.end()
            raise Lost("its connection was lost in the middle of an answer")
        return found

    def _release(self, connection: _Connection) -> None:
        """Keep a connection for another request, if the server keeps it open."""
        connection.reply = None
        if connection.keeps:
            self._free.append(connection)
        else:
            self._drop(connection)


class _Address:
    """Where connections of a server go."""

    def __init__(self, server: Server) -> None:
        parts = urlsplit(server.base)
        self.host, self.prefix, self.new_events = parts.hostname or "", parts.path, lambda: Events(server)
        self.context = ssl_context() if parts.scheme == "https" else None
        port = parts.port or (443 if self.context else 80)
        host = self.host if self.host.isascii() else self.host.encode("idna").decode()
        try:
            found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
            self.family, *_, self.where = found[0] if len(found) == 1 else _reached(host, port)
        except OSError as error:
            raise server.lost(error.strerror or str(error), reached=False) from None
        self._netloc = parts.netloc if parts.netloc.isascii() else host

    def request(self, reply: Reply, key: str | None) -> bytes:
        """The bytes of a request."""
        content = json.dumps(reply.body).encode()
        lines = [
            f"POST {self.prefix}{reply.path} HTTP/1.1", f"Host: {self._netloc}", "Content-Type: application/json",
            "User-Agent: specbench", f"Content-Length: {len(content)}",
        ]  # fmt: skip
        if key is not None:
            lines.append(f"Authorization: Bearer {key}")
        return "\r\n".join([*lines, "", ""]).encode() + content


def _reached(host: str, port: int) -> tuple[Any, ...]:
    """The first of a name's addresses that accepts a connection: its family and where it is."""
    with socket.create_connection((host, port), timeout=_LOOK_S) as tried:
        return tried.family, tried.getpeername()


class _Connection:
    """One HTTP/1.1 connection that never waits.

    Attributes:
        needs: what to wait for, as flags of :mod:`selectors`.
        used: whether it has answered a request before.
        begun: whether the answer has begun to arrive.
        status: the answer's HTTP status; 0 before its headers.
        whole: whether the answer's body is complete.
        keeps: whether the server keeps the connection open after that.
        refused: the body of an answer with another status than 200.
        error: why the connection was lost, where the system says so.
    """

    def __init__(self, address: _Address) -> None:
        made = socket.socket(address.family, socket.SOCK_STREAM)
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.connect_ex(address.where)
        self.socket: socket.socket = made
        if address.context is not None:
            self.socket = address.context.wrap_socket(made, server_hostname=address.host, do_handshake_on_connect=False)
        self._secured = address.context is None
        self._new_events = address.new_events
        self.used, self.number, self.reply, self.error = False, 0, None, ""
        self._unsent = b""

    number: int
    reply: Reply | None

    def send(self, number: int, reply: Reply, request: bytes) -> None:
        """Send a request; what does not fit yet is sent by :meth:`read`."""
        self.used = self.reply is None and self.number > 0
        self.number, self.reply, self._unsent = number, reply, request
        self.events, self._head, self._body = self._new_events(), b"", _Body()
        self.begun, self.status, self.whole, self.keeps, self.refused = False, 0, False, True, bytearray()
        self.needs = selectors.EVENT_READ | selectors.EVENT_WRITE
        if self.used:
            self._write()

    def read(self) -> tuple[int, bytes | None]:
        """Continue; return the time and the bytes that arrived: b"" if the connection ended, None for no bytes."""
        try:
            if not self._secured:
                self.needs = selectors.EVENT_READ
                assert isinstance(self.socket, ssl.SSLSocket)
                self.socket.do_handshake()
                self._secured = True
            if self._unsent:
                self._write()
            data = self.socket.recv(_READ)
            at_ns = time.perf_counter_ns()
            while data and isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
                data += self.socket.recv(_READ)
            return at_ns, data
        except ssl.SSLWantWriteError:
            self.needs = selectors.EVENT_READ | selectors.EVENT_WRITE
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except OSError as error:
            self.error = error.strerror or str(error)
            return time.perf_counter_ns(), b""
        return 0, None

    def _write(self) -> None:
        with suppress(BlockingIOError, ssl.SSLWantReadError):
            self._unsent = self._unsent[self.socket.send(self._unsent) :]
        more = selectors.EVENT_WRITE if self._unsent else 0
        self.needs = selectors.EVENT_READ | more

    def body(self, data: bytes) -> bytes:
        """Return the bytes of the body in what arrived; b"" is the end. Raises ValueError if it is not HTTP."""
        self.begun = self.begun or bool(data)
        if self.status == 0:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                if not data or len(self._head) > _MOST_HEADERS or not b"HTTP/".startswith(self._head[:5]):
                    raise ValueError("closed too early" if not data else "its answer is not HTTP")
                return b""
            head, data = self._head[:end], self._head[end + 4 :]
            self._read_head(head)
            if 100 <= self.status < 200:  # "100 Continue"
                self.status, self._head = 0, b""
                return self.body(data) if data else b""
            found = self._body.take(data) if data else b""
        else:
            found = self._body.take(data) if data else self._body.end()
        self.whole = self._body.whole
        if self.status != 200:
            self.refused += found
        return found

    def rest(self, data: bytes) -> bool:
        """Take bytes after the end of the answer; return whether the connection is still of use."""
        if self.reply is None or self.whole:
            return False
        try:
            self.body(data)
        except ValueError:
            return False
        return True

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, status = first.partition(" ")
        if not version.startswith("HTTP/1.") or not status[:3].isdecimal():
            raise ValueError("its answer is not HTTP")
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.status = int(status[:3])
        length = fields.get("content-length", "")
        self._body = _Body(
            "chunked" in fields.get("transfer-encoding", "").lower(), int(length) if length.isdecimal() else None
        )
        closes = fields.get("connection", "").lower() == "close" or version == "HTTP/1.0"
        self.keeps = not closes and not self._body.until_closed


class _Body:
    """An HTTP body: chunked, of a known length, or all bytes until the connection is closed."""

    def __init__(self, chunked: bool = False, length: int | None = None) -> None:
        self._chunked, self._left, self._rest = chunked, 0 if chunked else length, b""
        self._last = False
        self.whole = not chunked and length == 0

    @property
    def until_closed(self) -> bool:
        """Whether only the end of the connection ends it."""
        return not self._chunked and self._left is None

    def end(self) -> bytes:
        """The connection was closed."""
        if not self.until_closed:
            raise ValueError("closed too early")
        self.whole = True
        return b""

    def take(self, data: bytes) -> bytes:
        """Return the content in some bytes."""
        if not self._chunked:
            if self._left is not None:
                data = data[: self._left]
                self._left -= len(data)
                self.whole = self._left == 0
            return data
        found, data = [], self._rest + data
        while not self.whole:
            if self._left:
                found.append(data[: self._left])
                self._left -= len(found[-1])
                data = data[len(found[-1]) :]
                if self._left:
                    break
            line, ends, after = data.lstrip(b"\r\n").partition(b"\r\n") if not self._last else data.partition(b"\r\n")
            if not ends:
                if len(data) > _MOST_HEADERS:
                    raise ValueError("a chunk without a size")
                break
            data = after
            if self._last:  # trailers, up to an empty line
                self.whole = not line
                continue
            size = line.partition(b";")[0].strip()
            try:
                self._left = int(size, 16)
            except ValueError:
                raise ValueError("a chunk without a size") from None
            if self._left < 0:
                raise ValueError("a chunk without a size")
            self._last = self._left == 0
        self._rest = data
        return b"".join(found)
