"""The public names of a package (a "room"), each imported when it is first used.

A room's ``__init__`` lists them once, as imports for type checkers:

    if TYPE_CHECKING:
        from specbench.common import registry as registry
        from specbench.results.schema import RunConfig as RunConfig
    else:  # hidden from type checkers, which would otherwise accept any name
        __getattr__, __dir__ = door(__name__)

Importing a room is cheap, and a name costs as much as its module: ``specbench --help`` never imports pandas, and a
report never imports torch. A module whose functions read as verbs (``registry.method``) is exported as a module.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def door(room: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package whose names are in its ``if TYPE_CHECKING`` block."""
    package = sys.modules[room]
    assert package.__spec__ is not None
    source = package.__spec__.loader.get_source(room)  # type: ignore[union-attr]
    if source is None:
        raise ImportError(f"{room} has no source file; install specbench-llm again")
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
        except AttributeError as error:  # an AttributeError would look as if this room had no such name
            raise ImportError(f"{where[name]} cannot be imported: {error}") from error
        return getattr(module, name)

    return give, lambda: sorted({*vars(package), *where})
