"""How many rows a step is worth: the tree grows as long as a row brings more than it costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple

from specbench.drafting.heap_trees.marginals import Marginals, check_budget
from specbench.drafting.heap_trees.prefixes import best_prefixes
from specbench.engine.tree import TokenTree

StepSeconds = Callable[[int], float] | Mapping[int, float]


class Sized(NamedTuple):
    """A tree of the size that was found best.

    Attributes:
        tree: its rows, the most probable prefixes.
        budget: how many they are, root included.
        expected: accepted drafts that the head expects.
        seconds: what a step of so many rows takes, by the table.
    """

    tree: TokenTree
    budget: int
    expected: float
    seconds: float


def auto(marginals: Marginals, step_seconds: StepSeconds, max_budget: int) -> Sized:
    """The tree that emits most tokens per second, by the head's probabilities and measured step times.

    Maximises ``(1 + expected accepted) / step_seconds(rows)`` over the rows. The tree is :func:`optimal
    <specbench.drafting.heap_trees.prefixes.optimal>` without a spine: a row that the expectation did not choose would
    not pay by it. Trees of all sizes are beginnings of the largest, so one heap run answers for every budget.

    Args:
        marginals: what the head scored.
        step_seconds: rows -> seconds of a **whole** step: drafting and the host too, or small trees look better than
            they are. A mapping has the measured row buckets (``dict`` of (rows, seconds) pairs); a tree is padded to
            the next larger one, and none is larger than the largest. A function is asked about every number of rows.
        max_budget: rows at most, root included.

    Returns:
        The tree and its size. Of equally good buckets (numbers of rows, with a function) the smallest.

    Raises:
        ValueError: ``max_budget`` is less than 1, or a bucket or its time is not positive, or there is none.
    """
    check_budget(max_budget)
    if isinstance(step_seconds, Mapping):
        if not step_seconds:
            raise ValueError("no step times to choose a budget by; measure at least one row bucket")
        max_budget = min(max_budget, max(step_seconds))  # beyond it nothing is measured, so nothing is chosen
    tokens, parents, costs = best_prefixes(marginals, max_budget, spine=False)
    expected = list(accumulate((math.exp(-cost) for cost in costs[1:]), initial=0.0))  # of trees of 1, 2, ... rows
    sizes = _sizes(step_seconds, len(tokens))
    rows, seconds = max(sizes, key=lambda size: (1 + expected[size[0] - 1]) / size[1])
    return Sized(TokenTree(tokens[:rows], parents[:rows], origins="head"), rows, expected[rows - 1], seconds)


def _sizes(step_seconds: StepSeconds, most: int) -> Iterator[tuple[int, float]]:
    """The numbers of rows that can be best, least first, each with its step time."""
    if not isinstance(step_seconds, Mapping):
        for rows in range(1, most + 1):
            yield rows, _measured(rows, step_seconds(rows))
        return
    rows = 0
    for bucket, seconds in sorted(step_seconds.items()):
        _measured(bucket, seconds)
        if rows < most:  # padding costs what a row costs, and a row may be accepted: a bucket is best when full
            rows = min(bucket, most)
            yield rows, seconds


def _measured(rows: int, seconds: float) -> float:
    if rows < 1 or not 0 < seconds < math.inf:
        raise ValueError(f"a step of {rows} rows in {seconds} seconds is no measurement")
    return seconds
