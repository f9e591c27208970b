"""The user's cache folder, for what specbench makes once on a machine and reuses."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path | None:
    """``$XDG_CACHE_HOME/specbench/NAME`` (``~/.cache/specbench/NAME``), which may not exist yet.

    Returns:
        None if the process has neither a home nor ``XDG_CACHE_HOME``.
    """
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user that the machine does not know
        return None
    return root / "specbench" / name
