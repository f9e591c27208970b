"""One request to llama-server: its body, and its stream of tokens grouped into target forwards.

A step's tokens arrive one by one, each with the counters of its request so far. If a step verified a draft,
``draft_n_accepted`` has grown at its first token by the accepted drafts; the step has one token more than these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specbench.backends.protocol import Arrival, EngineCounters, Question
from specbench.backends.reply import Reply
from specbench.common import EngineFault, one_line
from specbench.results import acceptance_histogram

TIMES = {
    "prompt_ms": "time for the prompt, by the server's clock",
    "predicted_ms": "time from the first token to the last, by the server's clock",
}
#: The server's counters of drafted and accepted tokens.
_DRAFTED = ("draft_n", "draft_n_accepted")


class Steps(Reply):
    """One answer: an arrival per target forward, the last one of a full budget only after the server's end event.

    Args:
        drafts: whether the server speculates and sends timings with every token; else each token is a forward.
    """

    path = "/completion"

    def __init__(self, question: Question, *, drafts: bool) -> None:
        self.body = _body(question, drafts=drafts)
        self._question = question
        self._drafts = drafts
        self._sent = 0
        self._accepted: list[int] = []  # accepted draft tokens of each step so far that had a draft
        self._timings: Mapping[str, Any] = {}  # of the last event
        self._expected = 1  # tokens of the current step
        self._ids: list[int] = []  # those that have arrived
        self._at_ns = self._last = 0  # the last token and its time

    def take(self, at_ns: int, event: Any) -> Iterator[Arrival]:
        if not isinstance(event, dict):
            raise EngineFault("it sent an event that is not a JSON object")
        if new := self._taken(event):
            self._ids += new
            self._at_ns, self._last = at_ns, new[-1]
        self.finished = event.get("stop") is True
        whole = len(self._ids) == self._expected and self._sent < self._question.budget
        if self._ids and (whole or self.finished):
            yield Arrival(self._at_ns, tuple(self._ids))
            self._ids = []
        stopped = self._sent > 0 and self._last in self._question.stop_ids
        if self.finished and self._sent < self._question.budget and not stopped:
            why = one_line(str(event.get("stop_type") or "no reason given"), 40)
            raise EngineFault(f"it ended an answer after {self._sent} tokens ({why}), not at a stop token of the run")

    def counters(self) -> EngineCounters:
        verified = len(self._accepted)
        own = {key: float(self._timings[key]) for key in TIMES if isinstance(self._timings.get(key), (int, float))}
        if not self._drafts:
            return EngineCounters(own=own)
        drafted, accepted = (_count(self._timings, key) for key in _DRAFTED)
        if verified:
            own |= {"mean_len": 1 + accepted / verified, "draft_acceptance": accepted / drafted}
        histogram = acceptance_histogram(self._accepted)
        return EngineCounters(draft_tokens=drafted, accepted_tokens=accepted, histogram=histogram, own=own)

    def _taken(self, event: Mapping[str, Any]) -> list[int]:
        """Check an event and return its token ids."""
        new, counted = event.get("tokens"), event.get("tokens_predicted")
        if not isinstance(new, list) or any(type(each) is not int or each < 0 for each in new):
            raise EngineFault("it sends no token ids; use a llama-server that supports return_tokens")
        before = self._timings
        self._time(event.get("timings"))
        if not new:
            return new
        if not self._ids and self._drafts:
            drafted, accepted = (_count(self._timings, key) - _count(before, key) for key in _DRAFTED)
            self._expected = 1 + accepted
            self._accepted += [accepted] if drafted else []
        self._sent += len(new)
        if self._sent > self._question.budget:
            raise EngineFault(f"it generated more than its budget of {self._question.budget} tokens")
        if self._sent != counted:
            raise EngineFault(
                f"it sent {self._sent} ids of {one_line(str(counted), 20)} tokens: it does not send tokens whose text "
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
        self._timings = timings
        if timings.get("prompt_n") != len(self._question.ids):
            read = one_line(str(timings.get("prompt_n")), 20)
            raise EngineFault(f"it read {read} of the prompt's {len(self._question.ids)} tokens")


def _count(timings: Mapping[str, Any], key: str) -> int:
    """Return a counter, which is missing before the first draft."""
    found = timings.get(key, 0)
    if type(found) is not int:
        raise EngineFault(f"its {key} is not an integer")
    return found


def _body(question: Question, *, drafts: bool) -> dict[str, Any]:
    """Return a request's body, with samplers in an order that has the same effect as the run's sampling."""
    greedy = question.temperature == 0
    return {
        "prompt": list(question.ids),
        "n_predict": question.budget,
        "stream": True,
        "return_tokens": True,
        "timings_per_token": drafts,  # takes time, and is not needed if each token is a forward
        "cache_prompt": False,
        "ignore_eos": False,  # true would suppress the vocabulary's stop tokens
        "samplers": ["top_k"] if greedy else ["top_k", "temperature", "top_p"],
        "top_k": 1 if greedy else question.top_k,
        "top_p": question.top_p,
        "temperature": question.temperature,
        "dynatemp_range": 0,
        "mirostat": 0,
        "seed": question.seed & 0xFFFFFFFF,
    }
