"""Values of ``tree=``: EAGLE-2's dynamic tree, a chain, EAGLE-1's own tree, or any written tree."""

from __future__ import annotations

from typing import Any

from specbench.decoding import Node, TreeOption, parse_nodes

#: EAGLE-1's tree, which its released code names ``mc_sim_7b_63`` (Li et al. 2024). Names have one digit per rank.
EAGLE1 = "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"

#: A name has one digit per rank, so a node has at most ten children.
TREE = TreeOption("eagle", 10, {"static": parse_nodes(EAGLE1)}, ("dynamic", "chain"))


def nodes_of(options: Any) -> list[Node]:
    """Return the nodes of a written tree that fit into depth, width and budget; none for the other trees.

    Raises:
        UsageError: no node of a written tree fits.
    """
    if options.tree in TREE.others:
        return []
    nodes = sorted(TREE.nodes_of(options.tree), key=lambda node: (len(node), node))
    return TREE.fitting(nodes, options.depth, options.width, options.budget)
