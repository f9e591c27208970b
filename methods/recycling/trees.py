"""Static trees of Token Recycling: which candidate of which parent each node is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from specbench.decoding import Node, TreeOption

#: Number of candidates of a token: the best of the target's logits after it.
CANDIDATES = 8

# The published tree 2.2.2 (Luo et al. 2024, released code), depth by depth: the number of best candidates after each
# path of the depth before, which is named by its ranks.
_2_2_2 = (
    {"": 8},
    {"0": 8, "1": 4, "2": 3, "3": 2, "4": 1, "5": 1, "6": 1, "7": 1},
    {"00": 8, "01": 3, "02": 2, "03": 1, "04": 1, "05": 1, "06": 1, "07": 1, "10": 2, "11": 1, "20": 1, "30": 1,
     "40": 1, "50": 1},
    {"000": 5, "001": 2, "002": 1, "003": 1, "004": 1, "010": 1, "020": 1, "100": 1, "200": 1, "300": 1},
    {"0000": 3, "0001": 1, "0002": 1, "0010": 1, "0100": 1, "1000": 1},
    {"00000": 2, "00010": 1},
)  # fmt: skip


def _published() -> Iterator[Node]:
    for depth in _2_2_2:
        for path, children in depth.items():
            for rank in range(children):
                yield (*map(int, path), rank)


#: Values of ``tree=``.
TREE = TreeOption("recycling", CANDIDATES, {"2.2.2": list(_published())})


@cache
def smallest(tree: str, budget: int) -> tuple[Node, ...]:
    """The nodes of a tree that fit into a budget, depth by depth.

    A higher rank is less likely, so the nodes with the smallest sums of rank + 1 along their paths are kept. A kept
    node's parent is always kept, too.
    """
    ranked = sorted(TREE.nodes_of(tree), key=lambda node: (sum(node) + len(node), len(node), node))
    return tuple(sorted(ranked[: budget - 1], key=lambda node: (len(node), node)))


@cache
def parents(nodes: Sequence[Node]) -> list[int]:
    """Parent row of each node, [rows] including the root's; node i is in row i + 1."""
    rows = {(): 0} | {node: row for row, node in enumerate(nodes, 1)}
    return [-1, *(rows[node[:-1]] for node in nodes)]
