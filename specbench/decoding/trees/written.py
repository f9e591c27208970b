"""A tree's paths as people write them: Medusa's lists of ranks, or names of a digit per rank; in a file or as they are.

However they are written, the option's value becomes the names, one behind the other: a record says which tree it was,
and a file that was changed since makes another run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.common import UsageError, damaged, one_line, parse_json, read_text

#: A node by its ranks from the root down: ``(0, 2)`` is the third best guess under the best guess.
Node = tuple[int, ...]

_LARGEST = 256 << 10  # bytes; a tree of ten thousand nodes has half of it
_TODO = "write a list such as [[0], [1], [0, 0]], or names such as 0 1 00"
_NAMES = re.compile(r"[0-9]+(?:[\s,]+[0-9]+)*,?")
_AS_JSON = str.maketrans("()", "[]")


def parse_nodes(names: str) -> list[Node]:
    """The nodes of names with white space between them: ``0 1 00``."""
    return [tuple(map(int, name)) for name in names.split()]


@dataclass(frozen=True)
class TreeOption:
    """Tree option: the option of a method whose value is a tree of ranks.

    Attributes:
        owner: the method, for errors.
        ranks: guesses of a position; ranks are below it.
        known: names that stand for a tree.
        others: values that are no tree and have a meaning of their own.
    """

    owner: str
    ranks: int
    known: Mapping[str, list[Node]]
    others: tuple[str, ...] = ()

    def named(self, tree: str) -> str:
        """What a value stands for: a known name as it is, or the names of all nodes of a file or of the value itself.

        Raises:
            UsageError: it is none of these, or no tree: a node without its parent, one that is there twice, or a rank
                that no guess has.
        """
        if tree in self.known or tree in self.others:
            return tree
        here, file = f"option 'tree' of {self.owner}", os.path.expanduser(tree)
        if os.path.isfile(file):  # unlike Path's, of any text it says only yes or no
            return _written(self._nodes(read_text(Path(file), _TODO, _LARGEST).strip(), file), file)
        if _NAMES.fullmatch(tree.strip()) or tree.lstrip().startswith(("[", "(")):
            return _written(self._nodes(tree.strip(), here), here)
        known = ", ".join([*self.known, *self.others])
        raise UsageError(
            f"{here}: {one_line(tree, 80)!r} is none of {known}, and no such file is there; name one, or {_TODO}"
        )

    def nodes_of(self, tree: str) -> list[Node]:
        """The nodes of what :meth:`named` returned."""
        return self.known[tree] if tree in self.known else parse_nodes(tree)

    def _nodes(self, text: str, where: object) -> list[Node]:
        if _NAMES.fullmatch(text):
            content: Any = [list(map(int, name)) for name in re.split(r"[\s,]+", text.rstrip(","))]
        else:  # tuples and a comma behind the last entry, as Python writes them; the rest is JSON
            content = parse_json(re.sub(r",(\s*\])", r"\1", text.translate(_AS_JSON)), where, _TODO)
        if not isinstance(content, list):
            raise damaged(where, "no list of paths", _TODO)
        return [self._node(path, where) for path in content]

    def _node(self, path: Any, where: object) -> Node:
        if not isinstance(path, list) or not path:
            raise damaged(where, f"{path!r} is no path of ranks"[:80], _TODO)
        for rank in path:
            if type(rank) is not int or not 0 <= rank < self.ranks:
                most = f"the {self.ranks} best guesses have the ranks 0 to {self.ranks - 1}"
                raise damaged(where, f"rank {rank!r}"[:40], most)
        return tuple(path)


def _written(nodes: list[Node], where: object) -> str:
    """The names, each behind its parent's, otherwise in the order of the file: of equal paths the first one counts."""
    if not nodes:
        raise damaged(where, "no path", _TODO)
    there = set[Node]()
    for node in nodes:
        if node in there:
            raise damaged(where, f"{_name(node)} is there twice", "keep one")
        there.add(node)
    for node in nodes:
        if len(node) > 1 and node[:-1] not in there:
            raise damaged(where, f"{_name(node)} has no parent", f"add {_name(node[:-1])}")
    ordered = dict.fromkeys(node[:depth] for node in nodes for depth in range(1, len(node) + 1))
    return " ".join("".join(map(str, node)) for node in ordered)


def _name(node: Node) -> str:
    return one_line(str(list(node)), 60)
