"""Medusa's static trees: sparse trees of ranks, found by greedy search on the accuracy of published heads.

A node is named by its ranks from below the root down: ``02`` is the third best token of head 1 under the best token of
head 0. The nodes of each tree are in the order in which the search added them, so a prefix of a tree is a tree, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from specbench.decoding import MC_SIM_7B_63, Marginals, Node, TokenTree, TreeOption, parse_nodes

#: Candidates of each head in the released code: ranks in trees are below this.
CANDIDATES = 10
#: Ways to choose paths by the heads' scores.
BUILT = ("optimal", "accum-logp", "chain", "auto")

# Released with the heads (FasterDecoding/Medusa, ``medusa_choices.py``). "stage1" are trees for heads of Medusa-1,
# "stage2" for those of Medusa-2.
_RELEASED = {
    "vicuna_7b_stage2": (
        "0 00 1 01 000 10 2 02 001 03 3 010 20 4 002 04 11 100 0000 5 003 05 020 30 011 06 6 07 004 40 12 08 7 030 "
        "0001 005 21 006 101 0010 200 50 09 012 8 040 021 13 007 0002 008 110 0100 60 9 013 0003 102 050 31 0020 70 "
        "14"
    ),
    "vicuna_7b_stage1_ablation": (
        "0 00 1 000 01 10 2 02 001 3 03 010 20 002 04 4 0000 100 11 003 020 05 5 30 011 06 6 004 12 0001 40 005 07 08 "
        "030 0010 101 7 200 006 21 012 50 021 09 0002 040 8 13 007 0100 110 60 9 008 009 050 0020 102 013 0003 300 31"
    ),
    "vicuna_7b_stage1": (
        "0 00 1 2 01 10 3 02 4 000 03 5 20 04 6 05 11 001 7 30 06 8 9 010 07 08 40 002 12 09 21 50 100 003 13 020 011 "
        "004 60 14 005 22 030 31 006 70 15 101 200 007 80 0000 41 012 040 90 021 23 16 008 050 32 51"
    ),
    "vicuna_13b_stage2": (
        "0 00 1 000 01 10 2 02 001 010 3 03 20 002 0000 04 100 11 4 003 05 020 5 30 011 06 004 0001 07 005 12 0010 "
        "030 101 40 006 08 200 09 6 7 21 50 012 0002 8 040 0100 021 007 110 13 0020 9 008 050 0003 009 013 102 0011 "
        "300 1000"
    ),
    "vicuna_13b_stage1": (
        "0 00 1 01 2 10 000 02 3 03 4 20 04 001 05 5 11 010 6 06 002 7 30 8 07 08 100 003 40 12 9 09 21 020 004 13 "
        "011 005 50 030 0000 006 60 14 200 012 31 040 101 22 007 15 70 008 80 050 009 021 110 013 41 23 16"
    ),
    "vicuna_33b_stage2": (
        "0 00 1 01 000 10 2 02 001 03 3 010 20 04 4 002 11 100 05 5 0000 003 30 020 06 011 6 004 07 7 12 40 8 030 005 "
        "0001 08 21 09 101 200 006 50 0010 13 012 040 007 021 9 110 0002 60 008 0100 70 013 050 14 009 31 102 22"
    ),
    "vicuna_33b_stage1": (
        "0 1 00 2 01 3 10 4 02 5 03 000 6 04 20 7 11 05 30 8 9 06 07 001 12 40 010 08 09 21 002 50 13 003 100 14 60 "
        "020 31 22 004 70 011 15 41 005 030 90 80 16 006 23 012 32 040 200 17 101 007 51 24 008 021"
    ),
    "zephyr_stage2": (
        "0 00 1 01 2 000 10 02 3 03 4 20 001 04 5 05 010 11 6 002 30 06 7 07 08 003 100 09 020 12 40 8 9 21 011 004 "
        "0000 50 030 13 005 006 60 200 101 012 040 14 31 22 007 70 021 008 013 050 15 009 110 0001 0010 41 23"
    ),
}

#: Values of ``tree=``.
TREE = TreeOption(
    "medusa",
    CANDIDATES,
    {"mc_sim_7b_63": parse_nodes(MC_SIM_7B_63), **{name: parse_nodes(nodes) for name, nodes in _RELEASED.items()}},
    BUILT,
)


@cache
def first_nodes(tree: str, budget: int, width: int, depth: int) -> tuple[Node, ...]:
    """The first nodes of a static tree that fit into a budget, without ranks from ``width`` and levels below ``depth``.

    The parent of each node comes before it.

    Raises:
        UsageError: no node fits.
    """
    return tuple(TREE.fitting(TREE.nodes_of(tree), depth, width, budget))


def filled(marginals: Marginals, nodes: Sequence[Node]) -> TokenTree:
    """Return the tree of a text: each node's token is the candidate of its depth that has its rank.

    Nodes whose rank or depth has no candidate are left out; their descendants have none either if ``nodes`` were chosen
    with the same width and depth as the candidates.
    """
    tokens, parents = [marginals.root], [-1]
    rows: dict[Node, int] = {(): 0}
    for node in nodes:
        candidates = marginals.tokens[len(node) - 1]
        if node[:-1] in rows and node[-1] < len(candidates):
            rows[node] = len(tokens)
            tokens.append(candidates[node[-1]])
            parents.append(rows[node[:-1]])
    return TokenTree(tokens, parents, origins="head", scores=marginals.scores)
