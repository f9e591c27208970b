"""The greedy spine, and the tree of the most probable prefixes."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from specbench.drafting.heap_trees.marginals import Marginals, check_budget
from specbench.engine.tree import TokenTree


def chain(marginals: Marginals, budget: int) -> TokenTree:
    """The greedy spine: the best token of each depth, as many as fit (DFlash; a block of B is a budget of B).

    Args:
        marginals: what the head scored.
        budget: rows at most, root included.

    Raises:
        ValueError: ``budget`` is less than 1.
    """
    check_budget(budget)
    spine = [tokens[0] for tokens in marginals.tokens[: budget - 1]]
    return TokenTree.chain([marginals.root, *spine], origins="head")


def optimal(marginals: Marginals, budget: int, spine: bool = True) -> TokenTree:
    """The most probable prefixes (DDTree, ``build_ddtree_tree``), by default around the greedy spine. Our default.

    Without a spine no tree of as many rows has a larger :func:`expected_accepted
    <specbench.drafting.heap_trees.expectation.expected_accepted>`, among the given candidates; over the whole
    vocabulary, if no row takes the last candidate of its depth, as with K >= budget it cannot.

    The expectation trusts the head. With ``spine`` the first rows are :func:`chain`'s, however improbable the head
    finds their end, and the best prefixes get what is left: never fewer accepted than the chain of the same budget. A
    budget of at most D + 1 is then the chain itself; the guarantee is cheap only where the spine fits well inside.

    Args:
        marginals: what the head scored.
        budget: rows at most, root included: one more than DDTree's number.
        spine: place the greedy spine first. False: DDTree's own tree.

    Returns:
        The spine, then the rows most probable first; equal ones by their parent's row, then by rank. The tree of a
        smaller budget is the beginning of it.

    Raises:
        ValueError: ``budget`` is less than 1.
    """
    tokens, parents, _ = best_prefixes(marginals, budget, spine)
    return TokenTree(tokens, parents, origins="head")


def best_prefixes(marginals: Marginals, budget: int, spine: bool) -> tuple[list[int], list[int], list[float]]:
    """The rows of :func:`optimal` with their scores.

    Of the prefixes that are not in the tree, only two can be next behind one that just went in: its next sibling and
    its first child. So the heap holds one candidate per parent and never sees the other K - 1 (DDTree).

    Returns:
        Tokens, parents and negative log-probabilities of the paths, each of shape [rows].
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
