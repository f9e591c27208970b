"""Decide before each step whether the requests of a row draft: only while that is faster than plain steps."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from statistics import median

_PLAIN, _DRAFTING = 8, 32  # latest steps of each kind that count
_FIRST_PLAIN, _FIRST_DRAFTING = 4, 6  # steps of each kind at the start
_PROBE = 2  # timed steps of the other kind in a later probe
_OLD = 4  # drafting steps from before the last stop that count with those of a probe: text changes
_SHORTEST, _LONGEST = 16, 512  # steps between probes: four times as many after each probe that confirms the choice


@dataclass
class _Load:
    """Latest steps and the choice for one range of active requests."""

    plain: deque[float] = field(default_factory=lambda: deque(maxlen=_PLAIN))  # seconds
    drafting: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_DRAFTING))
    drafts: bool = True  # the kind that was faster
    probing: int = 0  # steps of the other kind that are left of a probe
    until: int = _SHORTEST  # steps until the next probe
    wait: int = _SHORTEST

    @property
    def first(self) -> bool:
        """Whether too few steps of a kind were timed for a choice."""
        return self.drafts and (len(self.plain) < _FIRST_PLAIN or len(self.drafting) < _FIRST_DRAFTING)

    def faster(self) -> bool:
        """Whether drafting steps emitted more tokens per second and request than plain ones, which emit one."""
        tokens, seconds = map(sum, zip(*self.drafting, strict=True))
        return tokens * median(self.plain) > seconds

    def choose(self, drafts: bool) -> None:
        """Run this kind until the next probe."""
        self.wait = min(4 * self.wait, _LONGEST) if drafts == self.drafts else _SHORTEST
        self.drafts, self.until = drafts, self.wait
        if not drafts:
            self.drafting = deque([*self.drafting][-_OLD:], _DRAFTING)


class Governor:
    """Chooses drafting or plain steps for all active requests of a row together, by the times of the row's own steps.

    A drafting step emits more tokens and takes longer, depending on the number of requests and their lengths. Both
    kinds are timed first. Then the faster kind runs, and the other is probed from time to time, less and less often
    while the choice holds. Steps with 1, 2, 3 to 4, 5 to 8, … active requests are kept apart.
    """

    def __init__(self) -> None:
        self._loads: dict[int, _Load] = defaultdict(_Load)
        self._drafted = True  # whether the step before drafted

    def drafts(self, active: int) -> bool:
        """Return whether ``active`` requests draft in the next step."""
        load = self._load(active)
        if load.first:
            return len(load.plain) >= _FIRST_PLAIN
        return load.drafts != (load.probing > 0)

    def saw(self, active: int, drafted: bool, tokens: int, seconds: float) -> None:
        """Take a step's emitted tokens over all requests, and its seconds."""
        load = self._load(active)
        resumed, self._drafted = drafted and not self._drafted, drafted
        if not drafted:
            load.plain.append(seconds)
        elif not resumed:  # otherwise the drafter also read the text that it missed
            load.drafting.append((tokens / active, seconds))
        if load.first:
            return
        if load.probing:
            load.probing -= 1
            if not load.probing:
                load.choose(load.faster())
        elif load.drafts and not load.faster():
            load.choose(False)
        else:
            load.until -= 1
            if load.until <= 0:
                load.probing = _PROBE + (not load.drafts)  # a first drafting step is not timed

    def _load(self, active: int) -> _Load:
        return self._loads[(active - 1).bit_length()]
