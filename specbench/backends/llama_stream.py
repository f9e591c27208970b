"""llama-server's stream, read as target forwards.

A step's tokens come one by one, each with the server's counters so far. A step that verified a draft raises
``draft_n_accepted`` before its first token, which tells how many tokens it has: one more than were accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specbench.backends.protocol import Arrival, Question
from specbench.backends.streaming import Lost
from specbench.common import EngineFault, one_line

#: What the server counts of drafts: tokens that were drafted, and of these accepted.
DRAFTED = ("draft_n", "draft_n_accepted")


class Steps:
    """The arrivals of one request, and the server's counters behind them.

    Args:
        drafts: it speculates, and was asked for its timings with every token; else each token is a forward.

    Attributes:
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

    def of(self, events: Iterator[tuple[int, Any]]) -> Iterator[Arrival]:
        """An arrival per target forward. The last of a whole budget waits for the server's word that this is all."""
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
            raise EngineFault(f"it generated more than the {self._question.budget} tokens that it was asked for")
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
