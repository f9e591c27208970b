"""Group llama-server's stream of tokens into target forwards.

A step's tokens arrive one by one, each with the server's counters so far. If a step verified a draft,
``draft_n_accepted`` has grown at its first token by the accepted drafts; the step has one token more than these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specbench.backends.protocol import Arrival, Question
from specbench.backends.streaming import Lost
from specbench.common import EngineFault, one_line

#: The server's counters of drafted and accepted tokens.
DRAFTED = ("draft_n", "draft_n_accepted")


class Steps:
    """The arrivals of one request, and the server's counters.

    Args:
        drafts: whether the server speculates and sends timings with every token; else each token is a forward.

    Attributes:
        sent: tokens so far.
        accepted: accepted draft tokens of each step so far that had a draft.
        timings: the server's timings of the last event.
        finished: whether the server has reported the end of the answer.
    """

    def __init__(self, question: Question, *, drafts: bool) -> None:
        self.sent = 0
        self.accepted: list[int] = []
        self.timings: Mapping[str, Any] = {}
        self.finished = False
        self._question = question
        self._drafts = drafts
        self._expected = 1  # tokens of the current step

    def of(self, events: Iterator[tuple[int, Any]]) -> Iterator[Arrival]:
        """Yield an arrival per target forward; the last one of a full budget only after the server's end event."""
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
            raise Lost("its connection was lost in the middle of an answer")
        if self.sent < self._question.budget and (not self.sent or last not in self._question.stop_ids):
            why = one_line(str(event.get("stop_type") or "no reason given"), 40)
            raise EngineFault(f"it ended an answer after {self.sent} tokens ({why}), not at a stop token of the run")

    def _taken(self, event: Mapping[str, Any], *, begins: bool) -> list[int]:
        """Check an event and return its token ids."""
        new, counted = event.get("tokens"), event.get("tokens_predicted")
        if not isinstance(new, list) or any(type(each) is not int or each < 0 for each in new):
            raise EngineFault("it sends no token ids; use a llama-server that supports return_tokens")
        before = self.timings
        self._time(event.get("timings"))
        if not new:
            return new
        if begins and self._drafts:
            drafted, accepted = (_count(self.timings, key) - _count(before, key) for key in DRAFTED)
            self._expected = 1 + accepted
            self.accepted += [accepted] if drafted else []
        self.sent += len(new)
        if self.sent > self._question.budget:
            raise EngineFault(f"it generated more than its budget of {self._question.budget} tokens")
        if self.sent != counted:
            raise EngineFault(
                f"it sent {self.sent} ids of {one_line(str(counted), 20)} tokens: it does not send tokens whose text "
                "is part of a character; let specbench start it, whose file has no such tokens"
            )
        return new

    def _time(self, timings: Any) -> None:
        """Check and store the server's timings."""
        if not isinstance(timings, dict):
            if self._drafts:
                raise EngineFault(
                    "it sends no timings with its tokens; use a llama-server that supports timings_per_token"
                )
            return
        self.timings = timings
        if timings.get("prompt_n") != len(self._question.ids):
            read = one_line(str(timings.get("prompt_n")), 20)
            raise EngineFault(f"it read {read} of the prompt's {len(self._question.ids)} tokens")


def _count(timings: Mapping[str, Any], key: str) -> int:
    """Return a counter, which is missing before the first draft."""
    found = timings.get(key, 0)
    if type(found) is not int:
        raise EngineFault(f"its {key} is not an integer")
    return found
