"""Read YAML files that users write by hand, within limits; errors are one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from specbench.common.reading import read_text, unreadable

_LARGEST = 256 << 10  # the Python parser takes seconds for more
_DEEPEST = 64


class _Strict:
    """Limits of a loader: no aliases (which can expand beyond memory), limited depth, no duplicate names."""

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
        texts: keep every scalar as written: YAML reads 4:32:4 as a base-60 number, and "no" as false.
    """
    text = read_text(path, todo, _LARGEST)
    try:
        return yaml.load(text, _Plain if texts else _Typed)
    except (
        Exception
    ) as error:  # an impossible date, a number without digits: the loader raises exceptions of many kinds
        raise unreadable(path, f"not YAML: {_said(error)}", todo) from None


def _said(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return str(error) or type(error).__name__
