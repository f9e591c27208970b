"""Streaming: answers over HTTP as server-sent events, each with the time at which it was here. No torch.

A request makes a connection of its own, so what that takes is part of the time to the first token.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from typing import Any

from specbench.backends.timed import Deadline, TimedRequest, opener
from specbench.common import keys
from specbench.common.address import checked, is_loopback
from specbench.common.errors import EngineFault, UsageError, one_line
from specbench.common.reading import parse_json
from specbench.evals.judge.secret import Secret, fault_of

_LONGEST = 4 << 20  # bytes of an event; llama.cpp's last one has the prompt's text in it
_LARGEST = 8 << 20  # bytes of a body that comes whole: a list of models, counters
_PIECE = 1 << 16
_READ = 1 << 12  # characters of a text of which the beginning is shown


class Refused(EngineFault):
    """A server's answer that is none, of an HTTP status.

    Attributes:
        status: of HTTP.
    """

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class Lost(EngineFault):
    """No connection, or one that broke off: whoever started the server may know why."""


class Server:
    """Server: an HTTP endpoint, the user's or one that was started here.

    Args:
        url: its address, with or without the ``/v1`` at the end.
        timeout: seconds for a connection with what comes first, for a body, and between two events.
        key_env: name of the environment variable with the key; "" where it needs none.

    Attributes:
        timeout: as above.

    Raises:
        UsageError: no web address, or one that holds what nobody should see; or there is no such variable.
    """

    def __init__(self, url: str, timeout: float, key_env: str = "") -> None:
        self._secret = Secret(_key(key_env)) if key_env else None
        host, _ = checked(url, "--backend-url", "api_key_env", self.scrub)
        self._base = url.rstrip("/").removesuffix("/v1")
        self.timeout = timeout
        # A proxy that the environment names is not meant for this machine itself.
        self._opener = opener(proxies=not is_loopback(host))

    def scrub(self, text: str) -> str:
        """The beginning of a text, far more than a sentence shows, without the key."""
        return text[:_READ] if self._secret is None else self._secret.scrub(text[:_READ])

    def get(self, path: str) -> bytes:
        """A body.

        Raises:
            Refused: another status than 200.
            EngineFault: no answer.
        """
        with closing(self._open(path, None, Deadline(self.timeout))) as response:
            content = self._guarded(lambda: _beginning(response, _LARGEST + 1))
        if len(content) > _LARGEST:
            raise EngineFault(f"it sent a body of more than {_LARGEST >> 20} MiB")
        return content

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
        deadline = Deadline(self.timeout)
        with closing(self._open(path, json.dumps(body).encode(), deadline)) as response:
            deadline.renew()
            rest = b""
            while piece := self._guarded(lambda: self._piece(response, deadline)):
                at_ns = time.perf_counter_ns()
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    name, _, data = line.strip().partition(b":")  # without a name it is a comment, to keep awake
                    if name not in (b"data", b"error"):
                        continue
                    if data.strip() == b"[DONE]":
                        return
                    event = self._parsed(data)
                    if name == b"error" or (isinstance(event, dict) and event.get("error")):
                        raise EngineFault(f"it gave up: {self._reason(event)}")
                    yield at_ns, event
                    deadline.renew()  # what was done meanwhile is not its delay
                if len(rest) > _LONGEST:
                    raise EngineFault(f"it sent an event of more than {_LONGEST >> 20} MiB")
        if rest.strip():
            raise Lost("its answer broke off in the middle of an event")

    def _open(self, path: str, body: bytes | None, deadline: Deadline) -> Any:
        headers = {"Content-Type": "application/json", "User-Agent": "specbench", "Accept": "*/*"}
        if self._secret is not None:
            headers["Authorization"] = f"Bearer {self._secret.key}"
        request = TimedRequest(self._base + path, body, headers, deadline)
        try:
            return self._opener.open(request, timeout=self.timeout)
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
            raise Lost(f"its connection broke off ({said or type(error).__name__})") from None

    def _piece(self, response: Any, deadline: Deadline) -> bytes:
        deadline.left()  # what has come already is read without a look at the clock
        return bytes(response.read1(_PIECE))

    def _parsed(self, data: bytes) -> Any:
        try:
            return parse_json(data, "it", "")
        except UsageError:
            start = one_line(self.scrub(data[:200].decode(errors="replace")), 60)
            raise EngineFault(f"it sent what is no JSON: '{start}'") from None

    def _stalled(self) -> EngineFault:
        return EngineFault(f"it stalled: nothing came for {self.timeout:g} s")

    def _refusal(self, path: str, error: urllib.error.HTTPError) -> Refused:
        try:
            said = _beginning(error, _PIECE).decode(errors="replace")
        except (OSError, http.client.HTTPException, ValueError):
            said = ""
        try:
            said = self._reason(parse_json(said.encode(), "it", ""))
        except UsageError:
            said = one_line(self.scrub(said), 160)
        return Refused(f"{path} answers HTTP {error.code}{f': {said}' if said else ''}", error.code)

    def _reason(self, event: Any) -> str:
        """What a server says of an error, in whatever form."""
        said = event.get("error", event) if isinstance(event, dict) else event
        said = said.get("message", said) if isinstance(said, dict) else said
        return one_line(self.scrub(str(said)), 200)

    def _unreachable(self, error: Exception) -> EngineFault:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, TimeoutError):
            return self._stalled()
        why = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        return Lost(f"its server is not to be reached ({one_line(self.scrub(str(why)), 120)}); is it running?")


def _key(name: str) -> str:
    key = os.environ.get(keys.named(name), "").strip()
    if not key:
        raise UsageError(f"api_key_env names {name}, which is not set; export it with the key")
    if fault := fault_of(key):
        raise UsageError(f"environment variable {name}, which api_key_env names, {fault}; export it again")
    return key


def _beginning(response: Any, most: int) -> bytes:
    """The first ``most`` bytes of a body, by pieces: ``read`` has no bound for a chunk of a size below nought."""
    content = bytearray()
    while len(content) < most and (piece := response.read1(_PIECE)):
        content += piece
    return bytes(content[:most])
