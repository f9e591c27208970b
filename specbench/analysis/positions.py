"""Positions: speedup over the place in the answer, for an answer's beginning is often easier to draft than its end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from specbench.analysis.stats.multiple import Paired
from specbench.results import RequestRecord

#: Where the first window of an answer ends; each further one is as long as all before it.
FIRST = 16


class Window(NamedTuple):
    """Tokens of an answer after its first one, which the prefill brings: those behind ``start`` up to ``end``."""

    start: int
    end: int


def windows(longest: int) -> list[Window]:
    """The windows of answers of so many tokens after the first: 1 to 16, 17 to 32, 33 to 64, …, the last one cut."""
    ends = [0]
    while ends[-1] < longest:
        ends.append(min(longest, max(FIRST, 2 * ends[-1])))
    return [Window(start, end) for start, end in pairwise(ends)]


def spent(record: RequestRecord, window: Window, shared: bool) -> tuple[float, int]:
    """Seconds and tokens of an answer in a window.

    A forward that kept tokens on both sides of an end is shared out by them. Records without step times share the
    answer's seconds evenly.
    """
    seconds, tokens = 0.0, 0
    for taken, (start, end) in zip(step_seconds(record, shared), _places(record), strict=True):
        inside = min(end, window.end) - max(start, window.start)
        if inside > 0:
            seconds += taken * inside / (end - start)
            tokens += inside
        elif start == end and window.start < start <= window.end:  # a forward of which nothing was kept
            seconds += taken
    return seconds, tokens


def forwards(record: RequestRecord, window: Window) -> float:
    """Target forwards in a window, those on both sides shared out likewise."""
    found = 0.0
    for start, end in _places(record):
        inside = min(end, window.end) - max(start, window.start)
        if inside > 0:
            found += inside / (end - start)
        elif start == end and window.start < start <= window.end:
            found += 1
    return found


def paired(
    ar: Sequence[RequestRecord], mine: Sequence[RequestRecord], units: Sequence[str], window: Window, shared: bool
) -> Paired:
    """Seconds and tokens in a window of the requests that reach it on both sides, in the same order."""
    columns: list[tuple[float, int, float, int, str]] = []
    for one, other, unit in zip(ar, mine, units, strict=True):
        a, b = spent(one, window, shared), spent(other, window, shared)
        if a[1] and b[1]:
            columns.append((*a, *b, unit))
    seconds, tokens, others, kept, clusters = ([row[at] for row in columns] for at in range(5))
    return Paired((seconds, tokens), (others, kept), clusters)  # type: ignore[arg-type]


def _places(record: RequestRecord) -> Iterator[tuple[int, int]]:
    """Tokens after the first that were there before each forward, and after it."""
    return pairwise(accumulate(record.accepted_lengths, initial=record.first_tokens - 1))


def step_seconds(record: RequestRecord, shared: bool) -> Sequence[float]:
    """Seconds of each target forward after prefill, drafting included; an even share where the record has no step
    times.
    """
    total, steps = record.decoding_s(shared), record.step_s or []
    if summed := math.fsum(steps):
        # What was rounded on the way makes no difference to the sum that every other figure is of.
        return [taken * total / summed for taken in steps]
    return [total / max(1, len(record.accepted_lengths))] * len(record.accepted_lengths)
