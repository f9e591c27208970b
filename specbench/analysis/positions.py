"""Speedup by position in the answer, because its beginning is often easier to draft than its end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from specbench.analysis.stats.multiple import Paired
from specbench.results import RequestRecord

#: End of an answer's first window; each further window is as long as all before it together.
FIRST = 16


class Window(NamedTuple):
    """Tokens ``start`` + 1 to ``end`` of an answer, not counting the first token, which the prefill emits."""

    start: int
    end: int


def windows(longest: int) -> list[Window]:
    """Windows of answers with ``longest`` tokens after the first: 1 to 16, 17 to 32, 33 to 64, …; the last is cut."""
    ends = [0]
    while ends[-1] < longest:
        ends.append(min(longest, max(FIRST, 2 * ends[-1])))
    return [Window(start, end) for start, end in pairwise(ends)]


def spent(record: RequestRecord, window: Window, shared: bool) -> tuple[float, int]:
    """Seconds and tokens of an answer in a window.

    A forward whose tokens span several windows is divided in proportion to them. Without step times, the answer's
    seconds are divided evenly over its forwards.
    """
    seconds, tokens = 0.0, 0
    for taken, (start, end) in zip(step_seconds(record, shared), _places(record), strict=True):
        inside = min(end, window.end) - max(start, window.start)
        if inside > 0:
            seconds += taken * inside / (end - start)
            tokens += inside
        elif start == end and _holds(window, start):  # a forward without kept tokens
            seconds += taken
    return seconds, tokens


def forwards(record: RequestRecord, window: Window) -> float:
    """Target forwards in a window; a forward that spans several windows is divided between them."""
    found = 0.0
    for start, end in _places(record):
        inside = min(end, window.end) - max(start, window.start)
        if inside > 0:
            found += inside / (end - start)
        elif start == end and _holds(window, start):
            found += 1
    return found


def _holds(window: Window, place: int) -> bool:
    """Whether a forward without kept tokens is in a window; one before the first token is in the first window."""
    return window.start < place <= window.end or place <= window.start == 0


def paired(
    ar: Sequence[RequestRecord], mine: Sequence[RequestRecord], units: Sequence[str], window: Window, shared: bool
) -> Paired:
    """Seconds and tokens in a window, for the requests where both rows' answers reach it, in the same order."""
    columns: list[tuple[float, int, float, int, str]] = []
    for one, other, unit in zip(ar, mine, units, strict=True):
        a, b = spent(one, window, shared), spent(other, window, shared)
        if a[1] and b[1]:
            columns.append((*a, *b, unit))
    seconds, tokens, others, kept, clusters = ([row[at] for row in columns] for at in range(5))
    return Paired((seconds, tokens), (others, kept), clusters)  # type: ignore[arg-type]


def _places(record: RequestRecord) -> Iterator[tuple[int, int]]:
    """Number of tokens after the first, before and after each forward."""
    return pairwise(accumulate(record.accepted_lengths, initial=record.first_tokens - 1))


def step_seconds(record: RequestRecord, shared: bool) -> Sequence[float]:
    """Seconds of each target forward after the prefill, drafting included; even shares without step times."""
    total, steps = record.decoding_s(shared), record.step_s or []
    if summed := math.fsum(steps):
        # Scale, so that rounded step times add up to the total that all other figures use.
        return [taken * total / summed for taken in steps]
    return [total / max(1, len(record.accepted_lengths))] * len(record.accepted_lengths)
