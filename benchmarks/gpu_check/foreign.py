"""Hide optional packages that were built for another torch, so that they do not break a part.

transformers imports some of them if they are installed; if such an import fails, no model can be loaded.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

from benchmarks.gpu_check.records import Journal

PACKAGES = ("flash_attn", "flash_attn_interface")

_LINE = "imported"
_LONGEST_S = 100.0  # importing it imports torch


def hide_broken(journal: Journal, *, again: bool) -> None:
    """Hide the packages that cannot be imported; the journal records the reasons.

    Args:
        journal: journal of the check.
        again: try each import in its own process, because it may crash; otherwise use the results in the journal.
    """
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            continue
        known = {} if again else journal.last(_LINE, package=package)
        if not known:
            journal.append(_LINE, package=package, why=_why_not(package))
        if why_hidden(journal, package):
            modules: dict[str, Any] = sys.modules
            modules[package] = None  # Python's own mark for a module that must not be found


def why_hidden(journal: Journal, package: str) -> str:
    """Reason why a package is hidden; empty if it is not hidden."""
    return str(journal.last(_LINE, package=package).get("why", ""))


def _why_not(package: str) -> str:
    """Reason why a package cannot be imported; empty if it can."""
    try:
        tried = subprocess.run(
            [sys.executable, "-c", f"import {package}"], capture_output=True, text=True, timeout=_LONGEST_S
        )
    except subprocess.TimeoutExpired:
        return f"its import takes more than {_LONGEST_S:g} s"
    if not tried.returncode:
        return ""
    return (tried.stderr.strip().splitlines() or [f"its import ends with status {tried.returncode}"])[-1][:300]
