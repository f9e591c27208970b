"""The names that a room hands out, each imported when it is first used.

A room's ``__init__`` names them once, as imports for type checkers:

    if TYPE_CHECKING:
        from specbench.common import registry as registry
        from specbench.results.schema import RunConfig as RunConfig
    else:  # hidden from type checkers, which would otherwise accept any name
        __getattr__, __dir__ = door(__name__)

Importing a room costs nothing, and a name costs what its module costs: ``specbench --help`` never imports pandas, nor
a report torch. A module whose functions are verbs (``registry.method``) is handed out whole.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def door(room: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package whose names stand in its ``if TYPE_CHECKING`` block."""
    package = sys.modules[room]
    assert package.__spec__ is not None
    source = package.__spec__.loader.get_source(room)  # type: ignore[union-attr]
    if source is None:
        raise ImportError(f"{room} has lost its source; install specbench-llm as it is published")
    where = {
        alias.name: statement.module
        for block in ast.parse(source).body
        if isinstance(block, ast.If)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
    }

    def give(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module '{room}' has no attribute '{name}'")
        if where[name] == room:
            return import_module(f"{room}.{name}")
        try:
            module = import_module(where[name])
        except AttributeError as error:  # would read as if this room had no such name
            raise ImportError(f"{where[name]} cannot be imported: {error}") from error
        return getattr(module, name)

    return give, lambda: sorted({*vars(package), *where})
