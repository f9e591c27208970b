"""Build the greedy chain, the tree of the most probable prefixes, and that tree with the fastest number of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from itertools import accumulate
from typing import NamedTuple

from specbench.decoding.tree import TokenTree
from specbench.decoding.trees.marginals import Marginals, check_budget


def chain(marginals: Marginals, budget: int) -> TokenTree:
    """Return the greedy chain: the best token of each depth, as many as fit (DFlash; a block of B is a budget of B)."""
    check_budget(budget)
    spine = [tokens[0] for tokens in marginals.tokens[: budget - 1]]
    return TokenTree.chain([marginals.root, *spine], origins="head", scores=marginals.scores)


def optimal(marginals: Marginals, budget: int, spine: bool = True) -> TokenTree:
    """Return the tree of the most probable prefixes (DDTree, ``build_ddtree_tree``); the default builder.

    Without ``spine``, no tree with the same number of rows and the given candidates has a larger
    :func:`expected_accepted <specbench.decoding.trees.paths.expected_accepted>`. This holds for the whole vocabulary if
    no row uses the last candidate of its depth, which cannot happen for K >= budget.

    The expectation relies on the head's scores. With ``spine``, the first rows are those of :func:`chain`, even if the
    head finds its end improbable, and the most probable prefixes fill the rest: the tree never has fewer accepted
    drafts than the chain of the same budget. For budgets up to D + 1 the tree is the chain itself, so the guarantee is
    cheap only if the budget is much larger.

    ``budget``: most rows, root included; one more than DDTree's number. The spine comes first, then rows by descending
    probability; ties are ordered by parent row, then by rank. The tree of a smaller budget is a prefix of the tree.
    """
    tokens, parents, _ = best_prefixes(marginals, budget, spine)
    return TokenTree(tokens, parents, origins="head", scores=marginals.scores)


def best_prefixes(marginals: Marginals, budget: int, spine: bool) -> tuple[list[int], list[int], list[float]]:
    """Return the rows of :func:`optimal` as tokens, parents and negative path log-probabilities, each of shape [rows].

    Adding a row creates only two new candidates: its next sibling and its first child. So the heap holds one candidate
    per parent instead of K (DDTree).
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
    """A tree of the best size: ``budget`` rows, root included; ``expected`` accepted drafts; ``seconds`` of a step."""

    tree: TokenTree
    budget: int
    expected: float
    seconds: float


def auto(marginals: Marginals, step_seconds: StepSeconds, max_budget: int) -> Sized:
    """Return the tree with the most tokens per second, according to the head's probabilities and measured step times.

    Maximises ``(1 + expected accepted) / step_seconds(rows)`` over the number of rows. The tree is :func:`optimal
    <specbench.decoding.trees.prefixes.optimal>` without a spine, because spine rows could lower the expectation.
    Smaller trees are prefixes of the largest one, so it is built only once.

    Args:
        step_seconds: rows -> seconds of a **whole** step, including drafting and host time; otherwise small trees seem
            faster than they are. A mapping holds the measured row buckets: a tree is padded to the next larger bucket,
            and cannot be larger than the largest. A function is called for every number of rows.
        max_budget: most rows, root included.

    Returns:
        The tree and its size. Of equally good sizes the smallest.
    """
    check_budget(max_budget)
    if isinstance(step_seconds, Mapping):
        if not step_seconds:
            raise ValueError("cannot choose a budget: there are no step times; measure at least one row bucket")
        max_budget = min(max_budget, max(step_seconds))  # larger trees have no measured time
    tokens, parents, costs = best_prefixes(marginals, max_budget, spine=False)
    expected = list(accumulate((math.exp(-cost) for cost in costs[1:]), initial=0.0))  # for trees of 1, 2, … rows
    sizes = _sizes(step_seconds, len(tokens))
    rows, seconds = max(sizes, key=lambda size: (1 + expected[size[0] - 1]) / size[1])
    tree = TokenTree(tokens[:rows], parents[:rows], origins="head", scores=marginals.scores)
    return Sized(tree, rows, expected[rows - 1], seconds)


def _sizes(step_seconds: StepSeconds, most: int) -> Iterator[tuple[int, float]]:
    """Yield the candidate numbers of rows, ascending, each with its step time."""
    if not isinstance(step_seconds, Mapping):
        for rows in range(1, most + 1):
            yield rows, _measured(rows, step_seconds(rows))
        return
    rows = 0
    for bucket, seconds in sorted(step_seconds.items()):
        _measured(bucket, seconds)
        if rows < most:  # padding costs as much as a row, which may be accepted: only full buckets can be best
            rows = min(bucket, most)
            yield rows, seconds


def _measured(rows: int, seconds: float) -> float:
    if rows < 1 or not 0 < seconds < math.inf:
        raise ValueError(f"invalid step time: {rows} rows in {seconds} seconds; both must be positive")
    return seconds
