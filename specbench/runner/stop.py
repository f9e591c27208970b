"""The stop rule, one for all methods: where an answer ends and which tokens count (peers' pitfalls C2 to C7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specbench.results import FinishReason

Decode = Callable[[Sequence[int]], str]

# Tokens looked at beyond a stop string's own length, for tokens that decode to no text (special ones, byte pieces).
_SLACK = 4


def cut(text: str, stops: Sequence[str]) -> str:
    """``text`` before the first of the stop strings."""
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
    """The kept tokens of one request. Truncation goes token by token: it cannot depend on how many a step brings."""

    rule: StopRule
    ids: list[int] = field(default_factory=list)
    overshoot: int = 0
    reason: FinishReason | None = None

    def extend(self, tokens: Sequence[int]) -> int:
        """Takes the tokens that a forward emitted; returns how many are kept. Sets ``reason`` when the answer ends."""
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
        """How many ids to keep when a stop string was completed by an id behind ``before``, else None."""
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
        """The answer: special tokens dropped, cut before the first stop string."""
        return cut(self.rule.decode(self.ids), self.rule.stops)

    def stop_tail(self) -> int:
        """Kept ids that lie wholly in or behind the stop string: generated only to detect it."""
        if self.reason != "stop-string":
            return 0
        text = self.text()
        tail = 0
        # Compared as text and not by length: half a character decodes to a replacement character as long as the whole.
        while tail < len(self.ids) and self.rule.decode(self.ids[: len(self.ids) - tail - 1]).startswith(text):
            tail += 1
        return tail
