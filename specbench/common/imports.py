"""What a Python file imports at its top that is not installed here. Nothing of it is run."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from specbench.common.errors import UsageError, one_line
from specbench.common.reading import read_text

_LARGEST = 4 << 20


def fault(file: Path) -> str | None:
    """Why a module cannot be imported, as far as its text tells; None where it may.

    Only what stands at the top level counts: an import within a ``try`` or a function may well fail.
    """
    try:
        tree = ast.parse(read_text(file, "install its package again", _LARGEST))
    except UsageError as error:
        return str(error)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        return f"{file.name} is no Python{line}: {one_line(getattr(error, 'msg', None) or str(error))}"
    names = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom) and not node.level]
    lacking = (name for name in names if (top := name.partition(".")[0]) and not _is_here(top))
    return next((f"{file.name} imports {one_line(name, 60)}, which is not installed" for name in lacking), None)


def _is_here(top: str) -> bool:
    try:
        return importlib.util.find_spec(top) is not None
    except (ValueError, ImportError):  # a module that was put in place by hand has no spec
        return True
