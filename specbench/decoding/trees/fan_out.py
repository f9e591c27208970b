"""Build JetSpec's trees, in which the most probable row gets all its children at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush

from specbench.decoding.tree import TokenTree
from specbench.decoding.trees.marginals import Marginals, check_budget

WIDTH = 7  # default in all of JetSpec's scripts
_SURE = 1e6  # gap to an impossible token: finite, so that beta=0 and g0=1e9 have their usual effect


def accum_logp(marginals: Marginals, budget: int, width: int = WIDTH) -> TokenTree:
    """Build JetSpec's published default tree (``tree/baselines/accum_logp.py``).

    The most probable row is expanded first and gets ``width`` children at once, so a small budget is spent on breadth:
    the tree can be worse than :func:`chain <specbench.decoding.trees.prefixes.chain>`. Rows and their order are those
    of the published code; rows of equal probability are expanded in the order in which they were added.

    ``budget``: most rows of the tree, root included, as in JetSpec.
    """
    return fan_out(marginals, budget, [_at_least_one(width)] * len(marginals.tokens))


def top2gap(marginals: Marginals, budget: int, width: int = WIDTH, beta: float = 2.0, g0: float = 1.0) -> TokenTree:
    """Build JetSpec's ``top2gap_fanout`` tree: :func:`accum_logp` with fewer children where the head is confident.

    :func:`gap_caps` limits the children. The defaults are those of JetSpec's benchmarks (``beta=2``), for which there
    are published numbers; its published class has ``beta=1``. ``g0=1e9`` gives exactly the tree of :func:`accum_logp`;
    ``beta=0`` does not, since it halves the width.

    Args:
        width: children of a row where the head is undecided.
        beta: how steeply the limit falls with the gap, per nat.
        g0: gap in nats at which half of the width remains.
    """
    return fan_out(marginals, budget, gap_caps(marginals, width, beta, g0))


def gap_caps(marginals: Marginals, width: int = WIDTH, beta: float = 2.0, g0: float = 1.0) -> list[int]:
    """Return the most children of a row at each depth, from the gap between the depth's two best log-probabilities.

    ``cap = max(1, round(width × sigmoid(-beta × (gap - g0))))``, where ``width`` is at most the number of candidates
    and halves round to even, both as in the published code. Arguments as in :func:`top2gap`.
    """
    _at_least_one(width)
    if not (math.isfinite(beta) and math.isfinite(g0)):
        raise ValueError(f"beta {beta} and g0 {g0} must be finite; use g0=1e9 to remove the limits")
    caps = []
    for logp in marginals.logp:
        most = min(width, len(logp))
        if most == 1:  # the gap needs two candidates
            caps.append(1)
            continue
        gap = min(logp[0] - logp[1], _SURE)
        caps.append(max(1, round(most * _sigmoid(-beta * (gap - g0)))))
    return caps


def fan_out(marginals: Marginals, budget: int, caps: Sequence[int]) -> TokenTree:
    """Build a tree best-first: take the most probable row and add its best children, up to the cap of its depth."""
    check_budget(budget)
    tokens, parents, depths = [marginals.root], [-1], [0]
    depth_limit, rows = len(marginals.tokens), 1
    heap = [(0.0, 0)] if depth_limit else []  # (-log-probability, row): ties in the order of rows
    while heap and rows < budget:
        cost, parent = heappop(heap)
        depth = depths[parent]
        fan = min(caps[depth], len(marginals.tokens[depth]), budget - rows)
        tokens += marginals.tokens[depth][:fan]
        parents += [parent] * fan
        depths += [depth + 1] * fan
        if depth + 1 < depth_limit:  # rows of the last depth have no children
            for row, logp in enumerate(marginals.logp[depth][:fan], rows):
                heappush(heap, (cost - logp, row))
        rows += fan
    return TokenTree(tokens, parents, origins="head", scores=marginals.scores)


def _at_least_one(width: int) -> int:
    if width < 1:
        raise ValueError(f"a width of {width} allows no children; give 1 or more")
    return width


def _sigmoid(x: float) -> float:
    # exp of negative numbers only: it underflows to 0, while exp of a large positive number would overflow.
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
