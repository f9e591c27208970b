"""Parse a tree option: Medusa's lists of ranks, or names with one digit per rank, given directly or in a file.

The option's value is always replaced by the names of all nodes, so that a record contains the tree itself, and a
changed file counts as another run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.common import UsageError, damaged, one_line, parse_json, read_text

#: The ranks on the path to a node: ``(0, 2)`` is the third best guess under the best guess.
Node = tuple[int, ...]

_LARGEST = 256 << 10  # bytes; a tree of ten thousand nodes has half of it
_TODO = "write a list such as [[0], [1], [0, 0]], or names such as 0 1 00"
_NAMES = re.compile(r"[0-9]+(?:[\s,]+[0-9]+)*,?")
_AS_JSON = str.maketrans("()", "[]")

#: Medusa's ``mc_sim_7b_63`` (Cai et al. 2024, released code), which TR-Jacobi uses, too. Names have one
#: digit per rank.
MC_SIM_7B_63 = (
    "0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100 020 12 003 40 21 004 005 0000 "
    "011 006 030 50 13 007 008 009 60 040 14 70 012 200 31 22 80 050 15 101 021 90 060 0001 16 070"
)


def parse_nodes(names: str) -> list[Node]:
    """Parse names separated by whitespace, such as ``0 1 00``."""
    return [tuple(map(int, name)) for name in names.split()]


@dataclass(frozen=True)
class TreeOption:
    """An option ``tree`` of a method, whose value is a tree of ranks.

    Attributes:
        owner: name of the method, for error messages.
        ranks: guesses per position; ranks must be smaller.
        known: predefined trees by name.
        others: further allowed values that are not trees.
    """

    owner: str
    ranks: int
    known: Mapping[str, list[Node]]
    others: tuple[str, ...] = ()

    def named(self, tree: str) -> str:
        """Normalise a value: return a known name unchanged, otherwise the names of all nodes in the value or its file.

        Raises:
            UsageError: the value is not a known name, a file or a tree, or the tree has a node without its parent, a
                duplicate node, or a rank that is too large.
        """
        if tree in self.known or tree in self.others:
            return tree
        here, file = f"option 'tree' of {self.owner}", os.path.expanduser(tree)
        if os.path.isfile(file):  # Path.is_file raises for some texts
            return _written(self._nodes(read_text(Path(file), _TODO, _LARGEST).strip(), file), file)
        if _NAMES.fullmatch(tree.strip()) or tree.lstrip().startswith(("[", "(")):
            return _written(self._nodes(tree.strip(), here), here)
        known = ", ".join([*self.known, *self.others])
        raise UsageError(
            f"cannot use {here}: {one_line(tree, 80)!r} is not a file and not one of {known}; give one of these, or "
            f"{_TODO}"
        )

    def nodes_of(self, tree: str) -> list[Node]:
        """Return the nodes of a value that :meth:`named` returned."""
        return self.known[tree] if tree in self.known else parse_nodes(tree)

    def fitting(self, nodes: Iterable[Node], depth: int, width: int, budget: int) -> list[Node]:
        """Return the first nodes that, with the root, fit into a budget, of those within depth and width.

        Raises:
            UsageError: no node fits.
        """
        kept = [node for node in nodes if len(node) <= depth and max(node) < width][: budget - 1]
        if not kept:
            raise UsageError(
                f"cannot draft with {self.owner}.tree: none of its nodes fits into depth {depth}, width {width} and "
                f"budget {budget}; raise them or choose another tree"
            )
        return kept

    def _nodes(self, text: str, where: object) -> list[Node]:
        if _NAMES.fullmatch(text):
            content: Any = [list(map(int, name)) for name in re.split(r"[\s,]+", text.rstrip(","))]
        else:  # JSON, or Python's syntax with tuples and trailing commas
            content = parse_json(re.sub(r",(\s*\])", r"\1", text.translate(_AS_JSON)), where, _TODO)
        if not isinstance(content, list):
            raise damaged(where, "it is not a list of paths", _TODO)
        return [self._node(path, where) for path in content]

    def _node(self, path: Any, where: object) -> Node:
        if not isinstance(path, list) or not path:
            raise damaged(where, f"{path!r} is not a list of ranks"[:80], _TODO)
        for rank in path:
            if type(rank) is not int or not 0 <= rank < self.ranks:
                most = f"the {self.ranks} best guesses have the ranks 0 to {self.ranks - 1}"
                raise damaged(where, f"rank {rank!r}"[:40], most)
        return tuple(path)


def _written(nodes: list[Node], where: object) -> str:
    """Return the names of all nodes, each after its parent's and otherwise in the order of the file."""
    if not nodes:
        raise damaged(where, "it has no paths", _TODO)
    there = set[Node]()
    for node in nodes:
        if node in there:
            raise damaged(where, f"it has {_name(node)} twice", "keep one")
        there.add(node)
    for node in nodes:
        if len(node) > 1 and node[:-1] not in there:
            raise damaged(where, f"the parent of {_name(node)} is missing", f"add {_name(node[:-1])}")
    ordered = dict.fromkeys(node[:depth] for node in nodes for depth in range(1, len(node) + 1))
    return " ".join("".join(map(str, node)) for node in ordered)


def _name(node: Node) -> str:
    return one_line(str(list(node)), 60)
