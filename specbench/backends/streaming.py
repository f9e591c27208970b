"""Streaming: answers over HTTP as server-sent events, each with the time at which it was here. No torch.

A request makes a connection of its own, so what that takes is part of the time to the first token.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from specbench.common.errors import EngineFault, UsageError, one_line
from specbench.common.reading import parse_json
from specbench.evals.judge.secret import Secret

_LONGEST = 1 << 20  # bytes of an event; one has a few tokens
_LARGEST = 8 << 20  # bytes of a body that comes whole: a list of models, counters
_PIECE = 1 << 16


class Refused(EngineFault):
    """A server's answer that is none, of an HTTP status.

    Attributes:
        status: of HTTP.
    """

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class Server:
    """Server: an HTTP endpoint that the user runs.

    Args:
        url: its address, with or without the ``/v1`` at the end.
        timeout: seconds for a connection, for what comes first, and between two events.
        key_env: name of the environment variable with the key; "" where it needs none.

    Raises:
        UsageError: no web address, or one that holds what nobody should see; or there is no such variable.
    """

    def __init__(self, url: str, timeout: float, key_env: str = "") -> None:
        self._secret = Secret(_key(key_env)) if key_env else None
        try:
            parts = urlsplit(url)
            named = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            named = False
        if not named or parts.query or parts.fragment:
            raise UsageError(
                f"--backend-url {one_line(self.scrub(url), 120)} is no web address; write it as http://localhost:8000/v1"
            )
        if "@" in parts.netloc:
            raise UsageError("--backend-url holds a user or password; name a variable with the key by api_key_env")
        if self.scrub(url) != url:
            raise UsageError("--backend-url holds the key; give the key by api_key_env alone")
        self._base = url.rstrip("/").removesuffix("/v1")
        self._timeout = timeout
        # A proxy that the environment names is not meant for this machine itself; and nothing is followed elsewhere.
        proxies: dict[str, str] | None = {} if _is_loopback(parts.hostname or "") else None
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies), _NoRedirect())

    def scrub(self, text: str) -> str:
        """A text without the key."""
        return text if self._secret is None else self._secret.scrub(text)

    def get(self, path: str) -> bytes:
        """A body.

        Raises:
            Refused: another status than 200.
            EngineFault: no answer.
        """
        with closing(self._open(path, None)) as response:
            return self._guarded(lambda: self._whole(response))

    def json(self, path: str) -> Any:
        """A body that is JSON.

        Raises:
            EngineFault: as :meth:`get`, or it is none.
        """
        return self._parsed(self.get(path))

    def events(self, path: str, body: Mapping[str, Any]) -> Generator[tuple[int, Any], None, None]:
        """Posts a body and yields the JSON of every event, with when it was here on ``time.perf_counter_ns``.

        Events that came in one piece share a time. Closing the iterator closes the connection.

        Raises:
            Refused: another status than 200.
            EngineFault: no connection, nothing for too long, a connection that broke off, or what is no event.
        """
        with closing(self._open(path, json.dumps(body).encode())) as response:
            rest, since = b"", time.monotonic()
            while piece := self._guarded(lambda: response.read1(_PIECE)):
                at_ns = time.perf_counter_ns()
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    name, _, data = line.strip().partition(b":")
                    if name != b"data":
                        continue
                    if data.strip() == b"[DONE]":
                        return
                    since = time.monotonic()
                    yield at_ns, self._parsed(data)
                    since = max(since, time.monotonic())  # what was done meanwhile is not its delay
                if len(rest) > _LONGEST:
                    raise EngineFault(f"it sent an event of more than {_LONGEST >> 20} MiB")
                if time.monotonic() - since > self._timeout:
                    raise self._stalled()
        if rest.strip():
            raise EngineFault("its answer broke off in the middle of an event")

    def _open(self, path: str, body: bytes | None) -> Any:
        headers = {"Content-Type": "application/json", "User-Agent": "specbench", "Accept": "*/*"}
        if self._secret is not None:
            headers["Authorization"] = f"Bearer {self._secret.key}"
        request = urllib.request.Request(self._base + path, body, headers)
        try:
            return self._opener.open(request, timeout=self._timeout)
        except urllib.error.HTTPError as error:
            with closing(error):
                raise self._refusal(path, error) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unreachable(error) from None

    def _guarded(self, read: Callable[[], bytes]) -> bytes:
        try:
            return read()
        except TimeoutError:
            raise self._stalled() from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            said = one_line(self.scrub(str(error)), 120)
            raise EngineFault(f"its connection broke off ({said or type(error).__name__})") from None

    def _whole(self, response: Any) -> bytes:
        parts, size, until = [], 0, time.monotonic() + self._timeout
        while piece := response.read1(_PIECE):
            parts.append(piece)
            size += len(piece)
            if size > _LARGEST:
                raise EngineFault(f"it sent a body of more than {_LARGEST >> 20} MiB")
            if time.monotonic() > until:
                raise TimeoutError
        return b"".join(parts)

    def _parsed(self, data: bytes) -> Any:
        try:
            return parse_json(data, "it", "")
        except UsageError:
            start = one_line(self.scrub(data[:200].decode(errors="replace")), 60)
            raise EngineFault(f"it sent what is no JSON: '{start}'") from None

    def _stalled(self) -> EngineFault:
        return EngineFault(f"it stalled: nothing came for {self._timeout:g} s")

    def _refusal(self, path: str, error: urllib.error.HTTPError) -> Refused:
        try:
            said = error.read(_PIECE).decode(errors="replace")
        except (OSError, http.client.HTTPException):
            said = ""
        said = one_line(self.scrub(said), 160)
        return Refused(f"{path} answers HTTP {error.code}{f': {said}' if said else ''}", error.code)

    def _unreachable(self, error: Exception) -> EngineFault:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, TimeoutError):
            return self._stalled()
        why = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        return EngineFault(f"its server is not to be reached ({one_line(self.scrub(str(why)), 120)}); is it running?")


def _key(name: str) -> str:
    key = os.environ.get(name, "")
    if not key:
        raise UsageError(f"api_key_env names {one_line(name, 40)}, which is not set; export it with the key")
    return key


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows nothing: the key would go along to wherever it points, and a POST would become a GET."""

    def redirect_request(self, *args: Any, **options: Any) -> None:
        return None
