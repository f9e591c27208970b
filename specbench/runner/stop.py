"""The stop rule of all methods: where an answer ends and which tokens count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specbench.results import FinishReason

Decode = Callable[[Sequence[int]], str]

# Tokens checked beyond a stop string's own length, for tokens that decode to no text (special tokens, partial bytes).
_SLACK = 4


def cut(text: str, stops: Sequence[str]) -> str:
    """The part of ``text`` before the first stop string."""
    found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return text[: min(found)] if found else text


@dataclass(frozen=True)
class StopRule:
    """When a request is finished.

    Attributes:
        stop_ids: ids that end the answer; the first one is kept and counted.
        stops: strings that end the answer; the token that completes the first one is the last kept.
    """

    stop_ids: frozenset[int]
    stops: tuple[str, ...]
    budget: int
    decode: Decode


@dataclass
class Output:
    """The kept tokens of one request. They are checked one by one, so the result does not depend on the steps."""

    rule: StopRule
    ids: list[int] = field(default_factory=list)
    overshoot: int = 0
    reason: FinishReason | None = None

    def extend(self, tokens: Sequence[int]) -> int:
        """Add the tokens that a forward emitted; return how many are kept. Sets ``reason`` when the answer ends."""
        before = len(self.ids)
        kept: list[int] = []
        for token in tokens:
            kept.append(token)
            if token in self.rule.stop_ids:
                self.reason = "stop"
            elif before + len(kept) == self.rule.budget:
                self.reason = "length"
            if self.reason:
                break
        self.ids += kept
        end = self._stop_string_end(before)
        if end is not None:
            del self.ids[end:]
            self.reason = "stop-string"
        taken = len(self.ids) - before
        self.overshoot += len(tokens) - taken
        return taken

    def _stop_string_end(self, before: int) -> int | None:
        """Number of ids to keep if an id after ``before`` completed a stop string, else None."""
        if not self.rule.stops:
            return None
        reach = max(len(stop.encode()) for stop in self.rule.stops) + _SLACK
        if not self._holds_stop(max(0, before - reach), len(self.ids)):
            return None
        for end in range(before + 1, len(self.ids) + 1):
            if self._holds_stop(max(0, end - reach), end):
                return end
        return None

    def _holds_stop(self, start: int, end: int) -> bool:
        text = self.rule.decode(self.ids[start:end])
        return any(stop in text for stop in self.rule.stops)

    def text(self) -> str:
        """The answer without special tokens, cut before the first stop string."""
        return cut(self.rule.decode(self.ids), self.rule.stops)

    def stop_tail(self) -> int:
        """Number of kept ids that lie entirely in or after the stop string."""
        if self.reason != "stop-string":
            return 0
        text = self.text()
        tail = 0
        # Compared as text, not by length: half a character decodes to a replacement character of the same length.
        while tail < len(self.ids) and self.rule.decode(self.ids[: len(self.ids) - tail - 1]).startswith(text):
            tail += 1
        return tail
