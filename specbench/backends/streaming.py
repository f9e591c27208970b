"""Answers over HTTP as server-sent events, each with the time at which it was here.

A request makes a connection of its own, so what that takes is part of the time to the first token.
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

_LONGEST = 4 << 20  # bytes of an event; llama.cpp's last one has the prompt's text in it
_LARGEST = 8 << 20  # bytes of a body that comes whole: a list of models, counters
_PIECE = 1 << 16
_READ = 1 << 12  # characters of a text of which the beginning is shown


class Refused(EngineFault):
    """A server's answer that is none, of an HTTP status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class Lost(EngineFault):
    """No connection, or one that broke off: whoever started the server may know why."""


class Server:
    """An HTTP endpoint, the user's or one that was started here.

    Args:
        url: its address, with or without the ``/v1`` at the end.
        timeout: seconds for a connection with what comes first, for a body, and between two events.
        key_env: name of the environment variable with the key; "" where it needs none.

    Raises:
        UsageError: no web address, or one that holds what nobody should see; or there is no such variable.
    """

    def __init__(self, url: str, timeout: float, key_env: str = "") -> None:
        self._secret = Secret(_key(key_env)) if key_env else None
        check_address(url, "--backend-url", "api_key_env", self.scrub)
        self._base = url.rstrip("/").removesuffix("/v1")
        self.timeout = timeout

    def scrub(self, text: str) -> str:
        """The beginning of a text, far more than a sentence shows, without the key."""
        return text[:_READ] if self._secret is None else self._secret.scrub(text[:_READ])

    def get(self, path: str) -> bytes:
        """A body."""
        with self._open(path, None, Deadline(self.timeout)) as response:
            content = response.beginning(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise EngineFault(f"it sent a body of more than {_LARGEST >> 20} MiB")
        return content

    def json(self, path: str) -> Any:
        """A body that is JSON."""
        return self._parsed(self.get(path))

    def events(self, path: str, body: Mapping[str, Any]) -> Generator[tuple[int, Any], None, None]:
        """Posts a body and yields the JSON of every event, with when it was here on ``time.perf_counter_ns``.

        Events that came in one piece share a time. Closing the iterator closes the connection.

        Raises:
            Refused: another status than 200.
            EngineFault: no connection, nothing for too long, a connection that broke off, or what is no event.
        """
        deadline = Deadline(self.timeout)
        with self._open(path, json.dumps(body).encode(), deadline) as response:
            deadline.renew()
            rest = b""
            for at_ns, piece in response.pieces():
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

    @contextmanager
    def _open(self, path: str, body: bytes | None, deadline: Deadline) -> Iterator[Response]:
        reached = False
        try:
            with send(
                self._base + path, body, None if self._secret is None else self._secret.key, deadline
            ) as response:
                reached = True
                if response.status != 200:
                    raise self._refusal(path, response)
                yield response
        except TimeoutError:
            raise EngineFault(f"it stalled: nothing came for {self.timeout:g} s") from None
        except ConnectionLost as error:
            why = one_line(self.scrub(str(error)), 120)
            lost = f"its connection broke off ({why})"
            raise Lost(lost if reached else f"its server is not to be reached ({why}); is it running?") from None

    def _parsed(self, data: bytes) -> Any:
        try:
            return parse_json(data, "it", "")
        except UsageError:
            start = one_line(self.scrub(data[:200].decode(errors="replace")), 60)
            raise EngineFault(f"it sent what is no JSON: '{start}'") from None

    def _refusal(self, path: str, response: Response) -> Refused:
        try:
            said = response.beginning(_PIECE).decode(errors="replace")
        except (TimeoutError, ConnectionLost):
            said = ""
        try:
            said = self._reason(parse_json(said.encode(), "it", ""))
        except UsageError:
            said = one_line(self.scrub(said), 160)
        return Refused(f"{path} answers HTTP {response.status}{f': {said}' if said else ''}", response.status)

    def _reason(self, event: Any) -> str:
        """What a server says of an error, in whatever form."""
        said = event.get("error", event) if isinstance(event, dict) else event
        said = said.get("message", said) if isinstance(said, dict) else said
        return one_line(self.scrub(str(said)), 200)


def _key(name: str) -> str:
    key = os.environ.get(keys.named(name), "").strip()
    if not key:
        raise UsageError(f"api_key_env names {name}, which is not set; export it with the key")
    if fault := fault_of(key):
        raise UsageError(f"environment variable {name}, which api_key_env names, {fault}; export it again")
    return key
