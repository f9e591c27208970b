"""Prefix trees: the greedy spine, the tree of the most probable prefixes, and how many rows are worth their step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from itertools import accumulate
from typing import NamedTuple

from specbench.decoding.tree import TokenTree
from specbench.decoding.trees.marginals import Marginals, check_budget


def chain(marginals: Marginals, budget: int) -> TokenTree:
    """The greedy spine: the best token of each depth, as many as fit (DFlash; a block of B is a budget of B)."""
    check_budget(budget)
    spine = [tokens[0] for tokens in marginals.tokens[: budget - 1]]
    return TokenTree.chain([marginals.root, *spine], origins="head", scores=marginals.scores)


def optimal(marginals: Marginals, budget: int, spine: bool = True) -> TokenTree:
    """The most probable prefixes (DDTree, ``build_ddtree_tree``), by default around the greedy spine. Our default.

    Without a spine no tree of as many rows has a larger :func:`expected_accepted
    <specbench.decoding.trees.paths.expected_accepted>`, among the given candidates; over the whole
    vocabulary, if no row takes the last candidate of its depth, as with K >= budget it cannot.

    The expectation trusts the head. With ``spine`` the first rows are :func:`chain`'s, however improbable the head
    finds their end, and the best prefixes get what is left: never fewer accepted than the chain of the same budget. A
    budget of at most D + 1 is then the chain itself; the guarantee is cheap only where the spine fits well inside.

    ``budget``: rows at most, root included: one more than DDTree's number. The spine comes first, then the rows most
    probable first; equal ones by their parent's row, then by rank. The tree of a smaller budget is the beginning of it.
    """
    tokens, parents, _ = best_prefixes(marginals, budget, spine)
    return TokenTree(tokens, parents, origins="head", scores=marginals.scores)


def best_prefixes(marginals: Marginals, budget: int, spine: bool) -> tuple[list[int], list[int], list[float]]:
    """The rows of :func:`optimal` with their scores.

    Of the prefixes that are not in the tree, only two can be next behind one that just went in: its next sibling and
    its first child. So the heap holds one candidate per parent and never sees the other K - 1 (DDTree).

    Returns tokens, parents and negative log-probabilities of the paths, each of shape [rows].
    """
    check_budget(budget)
    ranked, logp = marginals.tokens, marginals.logp
    depth_limit = len(ranked)
    tokens, parents, depths, costs = [marginals.root], [-1], [0], [0.0]
    heap: list[tuple[float, int, int]] = []  # (-log-probability of the prefix, its parent's row, its rank there)
    if spine:
        for row in range(1, min(depth_limit + 1, budget)):
            tokens.append(ranked[row - 1][0])
            parents.append(row - 1)
            depths.append(row)
            costs.append(costs[-1] - logp[row - 1][0])
        heap = [
            (costs[row] - scores[1], row, 1) for row, scores in enumerate(logp[: len(tokens) - 1]) if len(scores) > 1
        ]
        heapify(heap)
    elif depth_limit:
        heap = [(-logp[0][0], 0, 0)]

    for row in range(len(tokens), budget):
        if not heap:
            break
        cost, parent, rank = heap[0]
        depth = depths[parent]
        tokens.append(ranked[depth][rank])
        parents.append(parent)
        depths.append(depth + 1)
        costs.append(cost)
        siblings = logp[depth]
        rank += 1
        if rank < len(siblings):
            heapreplace(heap, (costs[parent] - siblings[rank], parent, rank))
        else:
            heappop(heap)
        if depth + 1 < depth_limit:
            heappush(heap, (cost - logp[depth + 1][0], row, 0))
    return tokens, parents, costs


StepSeconds = Callable[[int], float] | Mapping[int, float]


class Sized(NamedTuple):
    """A tree of the size that was found best: ``budget`` rows, root included; ``expected`` accepted drafts."""

    tree: TokenTree
    budget: int
    expected: float
    seconds: float


def auto(marginals: Marginals, step_seconds: StepSeconds, max_budget: int) -> Sized:
    """The tree that emits most tokens per second, by the head's probabilities and measured step times.

    Maximises ``(1 + expected accepted) / step_seconds(rows)`` over the rows. The tree is :func:`optimal
    <specbench.decoding.trees.prefixes.optimal>` without a spine: a row that the expectation did not choose would
    not pay by it. Trees of all sizes are beginnings of the largest, so one heap run answers for every budget.

    Args:
        step_seconds: rows -> seconds of a **whole** step: drafting and the host too, or small trees look better than
            they are. A mapping has the measured row buckets (``dict`` of (rows, seconds) pairs); a tree is padded to
            the next larger one, and none is larger than the largest. A function is asked about every number of rows.
        max_budget: rows at most, root included.

    Returns:
        The tree and its size. Of equally good buckets (numbers of rows, with a function) the smallest.
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
    tree = TokenTree(tokens[:rows], parents[:rows], origins="head", scores=marginals.scores)
    return Sized(tree, rows, expected[rows - 1], seconds)


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
