"""YAML reader: files that a user writes by hand, within limits, or one sentence on what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from specbench.common.reading import read_text, unreadable

_LARGEST = 256 << 10  # a parser in Python takes seconds for more
_DEEPEST = 64


class _Strict:
    """Limits of a loader: no aliases, which can stand for more than any memory holds, no depth, no name twice."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        loader: Any = super()
        if self.check_event(yaml.AliasEvent):  # type: ignore[attr-defined]
            raise yaml.MarkedYAMLError(None, None, "an alias; write it out", self.peek_event().start_mark)  # type: ignore[attr-defined]
        self._depth += 1
        if self._depth > _DEEPEST:
            raise yaml.MarkedYAMLError(None, None, "nested too deeply", self.peek_event().start_mark)  # type: ignore[attr-defined]
        node = loader.compose_node(parent, index)
        self._depth -= 1
        names = set()
        for name, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(name, yaml.ScalarNode):
                if name.value in names:
                    raise yaml.MarkedYAMLError(None, None, f"'{name.value}' is there twice", name.start_mark)
                names.add(name.value)
        return node


class _Typed(_Strict, yaml.SafeLoader):
    pass


class _Plain(_Strict, yaml.BaseLoader):
    pass


def read(path: Path, todo: str, *, texts: bool = False) -> Any:
    """The content of a YAML file.

    Args:
        texts: leave every scalar as it is written: YAML takes 4:32:4 for a number of base 60, and turns "no" around.
    """
    text = read_text(path, todo, _LARGEST)
    try:
        return yaml.load(text, _Plain if texts else _Typed)
    except Exception as error:  # a date that there is not, a number of no digits: the loader lets anything through
        raise unreadable(path, f"not YAML: {_said(error)}", todo) from None


def _said(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return str(error) or type(error).__name__
