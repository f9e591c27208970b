"""The sparse tree of TR-Jacobi and the paths through it.

A node is named by its ranks from the root down: ``(0, 2)`` is the third best guess for the second position, under the
best guess for the first. All nodes of one depth and rank carry the same token.
"""

from __future__ import annotations

from specbench.decoding import MC_SIM_7B_63, Node, TreeOption, parse_nodes

#: Rank of the retrieved token at every depth: after the ten best.
RETRIEVED = 10

#: Values of ``tree=``.
TREE = TreeOption("msn", RETRIEVED, {"mc_sim_7b_63": parse_nodes(MC_SIM_7B_63)}, ("chain",))


class Shape:
    """Rows of a tree: the root, the retrieval path, then the nodes in the order of the list.

    ``nodes``: a node comes after its parent; ``retrieved``: tokens of the retrieval path, 0 leaves it out. By row:
    ``nodes`` (the root's name is empty), ``parents`` and, except for the root, ``cells``: (depth - 1, rank), where its
    token is in a table of guesses of ``depth`` rows. ``paths``: rows of each path from the root to a leaf, in the order
    of the leaves, as released.
    """

    def __init__(self, nodes: list[Node], retrieved: int) -> None:
        self.nodes: list[Node] = [(), *((RETRIEVED,) * depth for depth in range(1, retrieved + 1)), *nodes]
        rows = {node: row for row, node in enumerate(self.nodes)}
        self.parents = [-1, *(rows[node[:-1]] for node in self.nodes[1:])]
        self.cells = [(len(node) - 1, node[-1]) for node in self.nodes[1:]]
        self.depth = max(map(len, self.nodes))
        inner = {node[:-1] for node in self.nodes if node}
        leaves = [node for node in self.nodes if node not in inner]
        self.paths = [[rows[leaf[:depth]] for depth in range(len(leaf) + 1)] for leaf in leaves]

    def origins(self, known: int, retrieved: int) -> list[str]:
        """Origin of each row's token: the target has guessed ``known`` positions ahead; the others contain noise."""
        filled = [
            (depth < retrieved, "lookup") if rank == RETRIEVED else (depth < known, "guess")
            for depth, rank in self.cells
        ]
        return ["guess", *(origin if there else "noise" for there, origin in filled)]

    def __len__(self) -> int:
        return len(self.nodes)
