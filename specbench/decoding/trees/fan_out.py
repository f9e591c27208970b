"""JetSpec's trees: the best row so far gets all its children at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush

from specbench.decoding.tree import TokenTree
from specbench.decoding.trees.marginals import Marginals, check_budget

WIDTH = 7  # in every script of JetSpec's
_SURE = 1e6  # gap to a token that cannot come: finite, so that beta=0 and g0=1e9 mean there what they mean elsewhere


def accum_logp(marginals: Marginals, budget: int, width: int = WIDTH) -> TokenTree:
    """JetSpec's published default (``tree/baselines/accum_logp.py``): the most probable row gets ``width`` children.

    Best-first, but siblings come as a set, so a small budget is spent on breadth: it can lose to :func:`chain
    <specbench.decoding.trees.prefixes.chain>`, the bare spine. Rows and their order are the published code's;
    rows of equal probability are expanded in the order they were added.

    ``budget``: rows of the tree at most, root included, as JetSpec counts.
    """
    return fan_out(marginals, budget, [_at_least_one(width)] * len(marginals.tokens))


def top2gap(marginals: Marginals, budget: int, width: int = WIDTH, beta: float = 2.0, g0: float = 1.0) -> TokenTree:
    """JetSpec's ``top2gap_fanout``: :func:`accum_logp` with fewer children where the head is sure, by :func:`gap_caps`.

    The class published with JetSpec has ``beta=1``, its benchmarks ran with ``beta=2``; ours are the benchmarks'
    settings, of which there are published numbers. ``g0=1e9`` gives exactly :func:`accum_logp`'s tree. (``beta=0``
    does not: it halves the width.)

    Args:
        width: children of a row where the head is undecided.
        beta: how sharply the cap falls with the gap, per nat.
        g0: gap at which half the width is left, in nats.
    """
    return fan_out(marginals, budget, gap_caps(marginals, width, beta, g0))


def gap_caps(marginals: Marginals, width: int = WIDTH, beta: float = 2.0, g0: float = 1.0) -> list[int]:
    """Children that a row may have, by the gap between the two best log-probabilities below it.

    ``cap = max(1, round(width × sigmoid(-beta × (gap - g0))))``, where ``width`` is no more than the candidates there
    are, and halves round to even, both as in the published code. Arguments are :func:`top2gap`'s.
    """
    _at_least_one(width)
    if not (math.isfinite(beta) and math.isfinite(g0)):
        raise ValueError(f"beta {beta} and g0 {g0} have to be finite; g0=1e9 lifts the caps")
    caps = []
    for logp in marginals.logp:
        most = min(width, len(logp))
        if most == 1:  # there is no second to measure a gap to
            caps.append(1)
            continue
        gap = min(logp[0] - logp[1], _SURE)
        caps.append(max(1, round(most * _sigmoid(-beta * (gap - g0)))))
    return caps


def fan_out(marginals: Marginals, budget: int, caps: Sequence[int]) -> TokenTree:
    """The heap behind both: pop the most probable row, add its best children together, at most its depth's cap."""
    check_budget(budget)
    tokens, parents, depths = [marginals.root], [-1], [0]
    depth_limit, rows = len(marginals.tokens), 1
    heap = [(0.0, 0)] if depth_limit else []  # (-log-probability, row): equal ones in the order they were added
    while heap and rows < budget:
        cost, parent = heappop(heap)
        depth = depths[parent]
        fan = min(caps[depth], len(marginals.tokens[depth]), budget - rows)
        tokens += marginals.tokens[depth][:fan]
        parents += [parent] * fan
        depths += [depth + 1] * fan
        if depth + 1 < depth_limit:  # the last depth has no children; in the heap it would only be popped and dropped
            for row, logp in enumerate(marginals.logp[depth][:fan], rows):
                heappush(heap, (cost - logp, row))
        rows += fan
    return TokenTree(tokens, parents, origins="head", scores=marginals.scores)


def _at_least_one(width: int) -> int:
    if width < 1:
        raise ValueError(f"a width of {width} leaves no children; 1 is the least")
    return width


def _sigmoid(x: float) -> float:
    # exp of a negative number only: it underflows to 0 where the other would overflow.
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
