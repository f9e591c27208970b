"""Send HTTP requests with a deadline for the whole exchange, without redirects, and with bounded bodies.

Built on httpcore, the transport of httpx, because a timeout of httpx holds for one read: a server that sends one byte
at a time outlasts it. Here every wait on the network ends at the deadline of the whole exchange. httpcore follows no
redirects, which would send the API key to another host.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

from specbench.common.errors import UsageError, one_line

_LONGEST_URL = 2000
_PATH = re.compile(r"[!-~]*")
_NAME = re.compile(r"[a-z0-9_.-]+", re.IGNORECASE)
_LOOK_S = 0.1  # seconds between checks whether the answer is still wanted
_PIECE = 1 << 16


class ConnectionLost(Exception):
    """No connection, or an answer that broke off. The text may contain a header."""


class GivenUp(Exception):
    """The answer is no longer wanted."""


class Deadline:
    """Time limit of an exchange.

    Args:
        seconds: from now, and from each :meth:`renew`.
        given_up: ends every wait when set.

    Attributes:
        read_ns: ``time.perf_counter_ns`` when the last bytes arrived.
    """

    def __init__(self, seconds: float, given_up: threading.Event | None = None) -> None:
        self._seconds, self._given_up = seconds, given_up
        self.read_ns = 0
        self.renew()

    def renew(self) -> None:
        """Start the time limit again."""
        self._until = time.monotonic() + self._seconds

    def left(self) -> float:
        """Seconds left.

        Raises:
            TimeoutError: none.
            GivenUp: the answer is no longer wanted.
        """
        if self._given_up is not None and self._given_up.is_set():
            raise GivenUp
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def wait(self, wait: Callable[[float], Any], unfinished: type[Exception]) -> Any:
        """Call ``wait(seconds)`` until it returns without raising ``unfinished``."""
        while True:
            try:
                return wait(self.left() if self._given_up is None else min(self.left(), _LOOK_S))
            except unfinished:
                continue


class Response:
    """An answer whose status and headers have arrived."""

    def __init__(self, response: Any, deadline: Deadline) -> None:
        self.status: int = response.status
        self._body, self._deadline = response.iter_stream(), deadline

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yield the body as it arrives, each piece with the ``time.perf_counter_ns`` of its arrival.

        Raises:
            TimeoutError: the deadline passed.
            ConnectionLost: the connection broke off.
        """
        while True:
            with _failures():
                self._deadline.left()  # also for pieces that have arrived already
                piece = next(self._body, None)
            if piece is None:
                return
            yield self._deadline.read_ns, piece

    def beginning(self, most: int) -> bytes:
        """Return the first ``most`` bytes of the body; raises as :meth:`pieces`."""
        content = bytearray()
        for _, piece in self.pieces():
            content += piece
            if len(content) >= most:
                break
        return bytes(content[:most])


@contextmanager
def send(url: str, body: bytes | None, key: str | None, deadline: Deadline) -> Iterator[Response]:
    """Send a request over its own connection: a POST of JSON, or a GET if there is no body.

    Proxies of the environment are used, except for this machine itself.

    Args:
        key: sent as a bearer token.
        deadline: for everything until the block ends.
    """
    with _failures():
        import httpcore2

        parts = urlsplit(url)
        if not url.isascii():
            url = parts._replace(netloc=parts.netloc.encode("idna").decode()).geturl()
        headers: dict[bytes | str, bytes | str] = {
            "Host": urlsplit(url).netloc,
            "Content-Type": "application/json",
            "User-Agent": "specbench",
        }
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        pool = httpcore2.ConnectionPool(
            ssl_context=ssl_context() if parts.scheme == "https" else None,
            proxy=_proxy(parts.scheme, parts.hostname or ""),
            network_backend=_Network(deadline),  # type: ignore[arg-type]  # has what is called of one
        )
        if body is not None:
            headers["Content-Length"] = str(len(body))
        method = "GET" if body is None else "POST"
        response = pool.handle_request(httpcore2.Request(method, url, headers=headers, content=body))
    try:
        yield Response(response, deadline)
    finally:
        with closing(pool):
            response.close()


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except (TimeoutError, GivenUp):
        raise
    except Exception as error:  # httpcore's, h11's, ssl's, idna's
        why = re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
        # h11's text contains byte counts
        raise ConnectionLost("closed too early" if "closed connection" in why else why) from None


@functools.cache
def ssl_context() -> Any:
    """The context for HTTPS, with the certificates that are trusted."""
    import httpcore2

    return httpcore2.default_ssl_context()  # reading the certificates takes longer than many answers


def _proxy(scheme: str, host: str) -> Any:
    import httpcore2

    if is_loopback(host):
        return None
    from urllib.request import getproxies, proxy_bypass

    found = getproxies()
    url = found.get(scheme) or found.get("all")
    if not url or proxy_bypass(host):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    auth = (unquote(parts.username or ""), unquote(parts.password or "")) if parts.username else None
    return httpcore2.Proxy(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(), auth)


class _Network:
    """httpcore's network backend, with a deadline instead of timeouts."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline

    def connect_tcp(self, host: str, port: int, timeout: Any = None, local_address: Any = None, **more: Any) -> Any:
        import httpcore2

        fault: Exception = OSError("its name has no address")
        for *_, address in self._look_up(host, port):
            try:
                made = httpcore2.SyncBackend().connect_tcp(address[0], port, self._deadline.left(), **more)
                return _Stream(made, self._deadline)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                fault = error
        self._deadline.left()
        raise fault

    def _look_up(self, host: str, port: int) -> list[Any]:
        """Resolve a name, in a thread if that may take long, because it cannot be interrupted."""
        found: list[Any] = []
        done = threading.Event()

        def look_up() -> None:
            try:
                found.append(socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM))
            except Exception as error:
                found.append(error)
            done.set()

        def wait(seconds: float) -> None:
            if not done.wait(seconds):
                raise BlockingIOError

        if is_loopback(host):
            look_up()
        else:
            threading.Thread(target=look_up, name="name lookup", daemon=True).start()
            self._deadline.wait(wait, BlockingIOError)
        if isinstance(found[0], Exception):
            raise found[0]
        return list(found[0])


class _Stream:
    """httpcore's network stream, with a deadline instead of timeouts."""

    def __init__(self, stream: Any, deadline: Deadline) -> None:
        self._stream, self._deadline = stream, deadline

    def read(self, most: int, timeout: Any = None) -> bytes:
        import httpcore2

        found: bytes = self._deadline.wait(functools.partial(self._stream.read, most), httpcore2.ReadTimeout)
        self._deadline.read_ns = time.perf_counter_ns()
        return found

    def write(self, content: bytes, timeout: Any = None) -> None:
        import httpcore2

        for at in range(0, len(content), _PIECE):
            try:
                self._stream.write(content[at : at + _PIECE], self._deadline.left())
            except httpcore2.WriteTimeout:
                raise TimeoutError from None

    def start_tls(self, context: Any, server_hostname: Any = None, timeout: Any = None) -> _Stream:
        import httpcore2

        try:
            return _Stream(self._stream.start_tls(context, server_hostname, self._deadline.left()), self._deadline)
        except httpcore2.ConnectTimeout:
            raise TimeoutError from None

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def close(self) -> None:
        self._stream.close()


def check_address(url: str, flag: str, key_flag: str, scrub: Callable[[str], str]) -> str:
    """Return host and port of a web address, as written in it.

    Args:
        key_flag: the option for a key, for errors: "--api-key-env".
        scrub: removes the key from a text.

    Raises:
        UsageError: not a web address, or one that contains a user, a password or the key; the text shows none of them.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        named = parts.scheme in ("http", "https") and parts.port != 0 and not re.search(r"[?#\s]", url)
        named = named and len(url) <= _LONGEST_URL and bool(_PATH.fullmatch(parts.path))
        named = named and (
            ipaddress.ip_address(host).version == 6
            if "[" in parts.netloc
            else bool(_NAME.fullmatch(host.encode("idna").decode()))
        )
    except ValueError:  # from the port, the brackets or idna
        named = False
    if "@" in (parts.netloc if named else url):
        raise UsageError(f"{flag} contains a user or password; give the key by {key_flag}")
    if not named:
        shown = one_line(scrub(url[:_LONGEST_URL]), 120)
        raise UsageError(f"{flag} {shown} is not a web address; write it as http://localhost:8000/v1")
    if scrub(url) != url:  # the record of a judge contains its host
        raise UsageError(f"{flag} contains the key; give the key only by {key_flag}")
    return parts.netloc


def is_loopback(host: str) -> bool:
    """Whether a host is this machine itself."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
