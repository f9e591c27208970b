"""llama-server's stream: what a request to it sends back, read as target forwards. No torch.

A step's tokens come one by one, each with the server's counters so far. A step that verified a draft has raised
``draft_n_accepted`` before it sends its first token, so that this one says how many are of its step: one more than were
accepted, and one alone where there was no draft. They are one arrival, when the last of them is here; nothing of the
next step is waited for.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from specbench.backends.protocol import Arrival, Question
from specbench.common import UsageError
from specbench.common.errors import EngineFault, one_line
from specbench.common.reading import json_object, parse_json

#: What the server counts of drafts: tokens that were drafted, and of these accepted.
DRAFTED = ("draft_n", "draft_n_accepted")

#: Objects of a stream of events, each with when it was here, on the clock of ``time.perf_counter_ns``.
Events = Generator[tuple[int, dict[str, Any]], None, None]

_LARGEST = 4 << 20  # bytes of an event, or of a reply; the last event has the prompt's text in it
_BLOCK = 1 << 16


class Lost(EngineFault):
    """The connection is refused, or broke off.

    Attributes:
        late: nothing came for as long as one waits.
    """

    def __init__(self, text: str, *, late: bool = False) -> None:
        super().__init__(text)
        self.late = late


class Address:
    """Address: where a server takes requests.

    Args:
        url: http://HOST:PORT, with a path before the server's own where there is one.

    Raises:
        EngineFault: it is none, or has a user's name or a key in it.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            parts, self._host = urlsplit(""), ""
        if parts.scheme not in ("http", "https") or not self._host or parts.query or parts.fragment:
            raise EngineFault("its URL is no web address; write it as http://localhost:8080")
        if "@" in parts.netloc:
            raise EngineFault("its URL holds a user or password; write it without")
        self._tls, self._path = parts.scheme == "https", parts.path.rstrip("/")

    def get(self, path: str, timeout_s: float) -> Any:
        """The JSON value behind a path.

        Raises:
            EngineFault: there is none within that time.
        """
        with closing(self._connect(timeout_s)) as connection:
            return _json(_answered(connection, "GET", self._path + path, None, timeout_s).read(_LARGEST), path)

    def events(self, path: str, body: Mapping[str, Any], timeout_s: float) -> Events:
        """Posts a request and yields the objects of its stream of events, each with when it was here.

        Args:
            path: of the server.
            body: is sent as JSON.
            timeout_s: seconds to the first event, and from one to the next.

        Raises:
            EngineFault: it refuses, breaks off, stalls, reports an error, or sends what is no JSON.
        """
        with closing(self._connect(timeout_s)) as connection:
            until, line, wire = time.monotonic() + timeout_s, b"", connection.sock
            reply = _answered(connection, "POST", self._path + path, json.dumps(body), timeout_s)
            while True:
                wire.settimeout(max(0.001, until - time.monotonic()))
                try:
                    block = reply.read1(_BLOCK)
                except (OSError, http.client.HTTPException) as error:
                    raise _lost(error, timeout_s) from error
                now = time.perf_counter_ns()
                if not block:
                    return
                *lines, line = (line + block).split(b"\n")
                if len(line) > _LARGEST:
                    raise EngineFault(f"it sent an event of more than {_LARGEST >> 20} MiB")
                for each in lines:
                    kind, _, data = each.partition(b":")  # without a kind it is a comment, sent to keep awake
                    if kind in (b"data", b"error") and data.strip() != b"[DONE]":
                        until = time.monotonic() + timeout_s
                        event = _object(data, path)
                        if kind == b"error" or "error" in event:
                            raise EngineFault(f"it reports an error: {_said(event.get('error', event))}")
                        yield now, event

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=timeout_s)
        try:
            connection.connect()
        except OSError as error:
            raise _lost(error, timeout_s) from error
        return connection


def _answered(
    connection: http.client.HTTPConnection, verb: str, path: str, body: str | None, timeout_s: float
) -> http.client.HTTPResponse:
    """The server's answer, which is a good one."""
    try:
        connection.request(verb, path, body, {"Content-Type": "application/json"} if body else {})
        reply = connection.getresponse()
        if reply.status == 200:
            return reply
        said = reply.read(_BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise _lost(error, timeout_s) from error
    try:
        why = _said(_object(said, path).get("error", ""))
    except EngineFault:
        why = one_line(said.decode(errors="replace"), 160)
    raise EngineFault(f"it refuses {verb} {path} (HTTP {reply.status}{f': {why}' if why else ''})")


def _lost(error: Exception, timeout_s: float) -> Lost:
    if isinstance(error, TimeoutError):
        return Lost(f"it sent nothing for {timeout_s:g} s", late=True)
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return Lost(f"its connection broke off ({one_line(why, 100)})")


def _json(content: bytes, where: str) -> Any:
    try:
        return parse_json(content, where, "serve a llama-server of this year")
    except UsageError as error:
        raise EngineFault(f"it answers with what is no JSON: {one_line(str(error), 160)}") from None


def _object(content: bytes, where: str) -> dict[str, Any]:
    value = _json(content, where)
    try:
        return json_object(value, where, "serve a llama-server of this year")
    except UsageError as error:
        raise EngineFault(f"it answers with what is no JSON object: {one_line(str(error), 160)}") from None


def _said(error: Any) -> str:
    return one_line(str(error.get("message", error) if isinstance(error, dict) else error), 160)


class Steps:
    """Steps: the arrivals of one request, and the server's counters behind them.

    Args:
        question: what was asked.
        drafts: it speculates, and was asked for its timings with every token; else each token is a forward.

    Attributes:
        sent: ids so far.
        verified: steps so far that had a draft.
        timings: the server's, as of its last event.
        finished: it has said that the answer is complete.
    """

    def __init__(self, question: Question, *, drafts: bool) -> None:
        self.sent = self.verified = 0
        self.timings: Mapping[str, Any] = {}
        self.finished = False
        self._question = question
        self._drafts = drafts
        self._expected = 1  # tokens of the step whose first one came last

    def of(self, events: Iterator[tuple[int, dict[str, Any]]]) -> Iterator[Arrival]:
        """An arrival per target forward. The last of a whole budget waits for the server's word that this is all.

        Raises:
            EngineFault: no ids, too many, or an end that is none in this run.
        """
        ids: list[int] = []
        here = last = 0
        for at_ns, event in events:
            if new := self._taken(event, begins=not ids):
                ids += new
                here, last = at_ns, new[-1]
            self.finished = event.get("stop") is True
            whole = len(ids) == self._expected and self.sent < self._question.budget
            if ids and (whole or self.finished):
                yield Arrival(here, tuple(ids))
                ids = []
            if self.finished:
                break
        if not self.finished:
            raise Lost("its connection broke off in the middle of an answer")
        if self.sent < self._question.budget and (not self.sent or last not in self._question.stop_ids):
            why = one_line(str(event.get("stop_type") or "no reason given"), 40)
            raise EngineFault(f"it ended an answer of {self.sent} tokens by itself ({why}), at none of the run's ends")

    def _taken(self, event: Mapping[str, Any], *, begins: bool) -> list[int]:
        """The ids of an event, once they are what was asked for."""
        new, counted = event.get("tokens"), event.get("tokens_predicted")
        if not isinstance(new, list) or any(type(each) is not int or each < 0 for each in new):
            raise EngineFault("it sends no token ids; use a llama-server that knows return_tokens")
        before = self.timings
        self._time(event.get("timings"))
        if not new:
            return new
        if begins and self._drafts:
            drafted, accepted = (_count(self.timings, key) - _count(before, key) for key in DRAFTED)
            self._expected = 1 + accepted
            self.verified += drafted > 0
        self.sent += len(new)
        if self.sent > self._question.budget:
            raise EngineFault(f"it went on behind the {self._question.budget} tokens that it was asked for")
        if self.sent != counted:
            raise EngineFault(
                f"it sent {self.sent} ids of {one_line(str(counted), 20)} tokens: it keeps those to itself whose text"
                " is part of a character; have it started by specbench, whose file has no such tokens"
            )
        return new

    def _time(self, timings: Any) -> None:
        """Takes in what the server says of its work so far."""
        if not isinstance(timings, dict):
            if self._drafts:
                raise EngineFault(
                    "it sends no timings with its tokens; use a llama-server that knows timings_per_token"
                )
            return
        self.timings = timings
        if timings.get("prompt_n") != len(self._question.ids):
            read = one_line(str(timings.get("prompt_n")), 20)
            raise EngineFault(f"it read {read} of the prompt's {len(self._question.ids)} tokens")


def _count(timings: Mapping[str, Any], key: str) -> int:
    """A counter, which is not there before its first draft."""
    found = timings.get(key, 0)
    if type(found) is not int:
        raise EngineFault(f"its {key} is no number")
    return found
