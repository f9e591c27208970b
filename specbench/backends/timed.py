"""Timed: HTTP whose every wait ends by a deadline, however slowly the other side says something. No torch.

A socket's own limit starts anew with each byte: a header or a chunk's size sent a byte at a time outlasts it without
end. Here the limit of each read is what is left until the deadline. No thread is needed but to look a name up, which
cannot be broken off; so the time at which something arrives is not that of a thread that had to wake up first.
"""

from __future__ import annotations

import functools
import http.client
import io
import socket
import ssl
import threading
import time
import urllib.request
from typing import Any

from specbench.common.address import is_loopback
from specbench.common.redirects import NoRedirect


class Deadline:
    """Deadline: when what is waited for has to be here.

    Args:
        seconds: from now, and from each :meth:`renew` on.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        """Lets it run from now."""
        self._until = time.monotonic() + self._seconds

    def left(self) -> float:
        """Seconds until then.

        Raises:
            TimeoutError: none are.
        """
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def connect(self, address: tuple[str, int], timeout: Any = None, source: Any = None) -> socket.socket:
        """As ``socket.create_connection``, over all addresses of a name together."""
        fault: OSError | None = None
        for family, kind, protocol, _, where in self._looked_up(address):
            made = socket.socket(family, kind, protocol)
            try:
                made.settimeout(self.left())
                made.connect(where)
                return made
            except OSError as error:
                made.close()
                fault = error
        raise fault or OSError("its name has no address")

    def _looked_up(self, address: tuple[str, int]) -> list[Any]:
        host, port = address
        found: list[Any] = []

        def look_up() -> None:
            try:
                found.append(socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM))
            except Exception as error:
                found.append(error)

        if is_loopback(host):
            look_up()
        else:
            looking = threading.Thread(target=look_up, name="name of an engine", daemon=True)
            looking.start()
            looking.join(self.left())
        if not found:
            raise TimeoutError
        if isinstance(found[0], Exception):
            raise found[0]
        return list(found[0])


class TimedRequest(urllib.request.Request):
    """A request with a deadline; goes through an opener of :func:`opener`."""

    def __init__(self, url: str, body: bytes | None, headers: dict[str, str], deadline: Deadline) -> None:
        super().__init__(url, body, headers)
        self.deadline = deadline


def opener(*, proxies: bool) -> urllib.request.OpenerDirector:
    """Opens requests, and follows nothing elsewhere.

    Args:
        proxies: takes those that the environment names.
    """
    named = urllib.request.ProxyHandler(None if proxies else {})
    return urllib.request.build_opener(named, NoRedirect(), _Http(), _Https())


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: Any) -> Any:
        return self.do_open(functools.partial(_connection, http.client.HTTPConnection, req.deadline), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self) -> None:
        super().__init__()
        self._trusted: ssl.SSLContext | None = None  # reading the certificates takes longer than many an answer

    def https_open(self, req: Any) -> Any:
        if self._trusted is None:
            self._trusted = ssl.create_default_context()
        made = functools.partial(_connection, http.client.HTTPSConnection, req.deadline, context=self._trusted)
        return self.do_open(made, req)


def _connection(kind: Any, deadline: Deadline, host: str, **options: Any) -> Any:
    made = kind(host, **options)
    made._create_connection = deadline.connect  # http.client's own place for another way to connect
    made.response_class = functools.partial(_Response, deadline)
    return made


class _Response(http.client.HTTPResponse):
    def __init__(self, deadline: Deadline, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp: Any = io.BufferedReader(_Reads(self.fp.detach(), sock, deadline))


class _Reads(io.RawIOBase):
    """What comes over a connection; each read ends by the deadline."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, deadline: Deadline) -> None:
        self._raw, self._sock, self._deadline = raw, sock, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Any:
        self._sock.settimeout(self._deadline.left())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()
