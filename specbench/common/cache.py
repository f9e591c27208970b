"""The folder of this user for what specbench makes once on a machine and uses again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path | None:
    """``$XDG_CACHE_HOME/specbench/NAME`` (``~/.cache/specbench/NAME``), which may not be there yet.

    Returns:
        None where this process has neither a home nor is told of a cache.
    """
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user whom the machine does not know
        return None
    return root / "specbench" / name
