"""Receive answers over HTTP as server-sent events, each with its arrival time.

Each request opens a new connection, whose time is part of the time to the first token.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from specbench.common import (
    ConnectionLost,
    Deadline,
    EngineFault,
    Response,
    Secret,
    UsageError,
    check_address,
    fault_of,
    keys,
    one_line,
    parse_json,
    send,
)

_LONGEST = 4 << 20  # most bytes of an event; llama.cpp's last event contains the prompt's text
_LARGEST = 8 << 20  # most bytes of a body without events, such as a list of models
_PIECE = 1 << 16


class Refused(EngineFault):
    """An answer with an HTTP status other than 200."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class Lost(EngineFault):
    """A missing or lost connection; if the server was started here, the end of its process may explain it."""


class Server:
    """An HTTP endpoint, of the user or started here.

    Args:
        url: its address, with or without ``/v1`` at the end.
        timeout: seconds for the connection and the first data, for a body, and between two events.
        key_env: name of the environment variable with the API key; "" if none is needed.

    Raises:
        UsageError: the URL is not a web address or contains a secret, or the variable is not set.
    """

    def __init__(self, url: str, timeout: float, key_env: str = "") -> None:
        self._secret = Secret(_key(key_env)) if key_env else None
        check_address(url, "--backend-url", "api_key_env", self.scrub)
        self.base = url.rstrip("/").removesuffix("/v1")
        self.timeout = timeout

    @property
    def key(self) -> str | None:
        """The API key; None if the server needs none."""
        return None if self._secret is None else self._secret.key

    def scrub(self, text: str) -> str:
        """Return a text without the API key."""
        return text if self._secret is None else self._secret.scrub(text)

    def get(self, path: str) -> bytes:
        """Return the body at a path."""
        with self._open(path, None, Deadline(self.timeout)) as response:
            content = response.beginning(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise EngineFault(f"it sent a body of more than {_LARGEST >> 20} MiB")
        return content

    def json(self, path: str) -> Any:
        """Return the JSON content at a path."""
        return self.parsed(self.get(path))

    def events(self, path: str, body: Mapping[str, Any]) -> Generator[tuple[int, Any], None, None]:
        """Post a body and yield (arrival time on ``time.perf_counter_ns``, JSON content) of every event.

        Events that arrived in one piece share a time. Closing the iterator closes the connection.

        Raises:
            Refused: the status is not 200.
            EngineFault: there is no connection, it was lost, no data came for too long, or an event is invalid.
        """
        deadline = Deadline(self.timeout)
        found = Events(self)
        with self._open(path, json.dumps(body).encode(), deadline) as response:
            deadline.renew()
            for at_ns, piece in response.pieces():
                for event in found.take(piece):
                    yield at_ns, event
                    deadline.renew()  # time spent by the caller is not the server's delay
                if found.ended:
                    return
        found.end()

    @contextmanager
    def _open(self, path: str, body: bytes | None, deadline: Deadline) -> Iterator[Response]:
        reached = False
        try:
            with send(self.base + path, body, self.key, deadline) as response:
                reached = True
                if response.status != 200:
                    try:
                        content = response.beginning(_PIECE)
                    except (TimeoutError, ConnectionLost):
                        content = b""
                    raise self.refusal(path, response.status, content)
                yield response
        except TimeoutError:
            raise EngineFault(f"it stalled: no data came for {self.timeout:g} s") from None
        except ConnectionLost as error:
            raise self.lost(str(error), reached) from None

    def lost(self, why: str, reached: bool) -> Lost:
        """Return the error for a connection that was lost, or that could not be made."""
        why = one_line(self.scrub(why), 120)
        if reached:
            return Lost(f"its connection was lost ({why})")
        return Lost(f"its server cannot be reached ({why}); check that it is running")

    def parsed(self, data: bytes) -> Any:
        try:
            return parse_json(data, "it", "")
        except UsageError:
            start = one_line(self.scrub(data[:200].decode(errors="replace")), 60)
            raise EngineFault(f"it sent invalid JSON: '{start}'") from None

    def refusal(self, path: str, status: int, content: bytes) -> Refused:
        """Return the error for an answer with another HTTP status than 200; ``content`` is its body."""
        text = content.decode(errors="replace")
        try:
            reason = self.reason(parse_json(text.encode(), "it", ""))
        except UsageError:
            reason = one_line(self.scrub(text), 160)
        return Refused(f"{path} answers HTTP {status}{f': {reason}' if reason else ''}", status)

    def reason(self, event: Any) -> str:
        """Return the message of a server's error, which may have several forms."""
        error = event.get("error", event) if isinstance(event, dict) else event
        message = error.get("message", error) if isinstance(error, dict) else error
        return one_line(self.scrub(str(message)), 200)


class Events:
    """Server-sent events of one answer, taken from the pieces in which its body arrives.

    Attributes:
        ended: whether the server's mark for the end, ``[DONE]``, has arrived.
    """

    def __init__(self, server: Server) -> None:
        self._server, self._rest, self.ended = server, b"", False

    def take(self, piece: bytes) -> Iterator[Any]:
        """Yield the JSON content of the events that a piece completes; raises EngineFault for an invalid event."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            name, _, data = line.strip().partition(b":")  # a line without a name is a keep-alive comment
            if name not in (b"data", b"error"):
                continue
            if data.strip() == b"[DONE]":
                self.ended = True
                return
            event = self._server.parsed(data)
            if name == b"error" or (isinstance(event, dict) and event.get("error")):
                raise EngineFault(f"it aborted the answer: {self._server.reason(event)}")
            yield event
        if len(self._rest) > _LONGEST:
            raise EngineFault(f"it sent an event of more than {_LONGEST >> 20} MiB")

    def end(self) -> None:
        """Raise Lost if the body ended in the middle of an event."""
        if self._rest.strip():
            raise Lost("its answer ended in the middle of an event")


def _key(name: str) -> str:
    key = os.environ.get(keys.named(name), "").strip()
    if not key:
        raise UsageError(f"cannot read the API key: environment variable {name} of api_key_env is not set; export it")
    if fault := fault_of(key):
        raise UsageError(f"cannot use the API key: environment variable {name} of api_key_env {fault}; export it again")
    return key
