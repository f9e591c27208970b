"""Foreign: optional packages of an image that were built for another torch are hidden, so that they break no part.

transformers imports some of them where it finds them, and one that fails then takes every model with it. No torch here.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

from benchmarks.gpu_check.records import Journal

PACKAGES = ("flash_attn", "flash_attn_interface")

_LINE = "imported"
_LONGEST_S = 100.0  # it imports torch


def hide_broken(journal: Journal, *, again: bool) -> None:
    """Hides the packages that cannot be imported from this process; the journal has their reasons.

    Args:
        journal: of the check.
        again: try each of them, in a process of its own, which it may end. Else what the journal knows is enough.
    """
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            continue
        known = {} if again else journal.last(_LINE, package=package)
        if not known:
            journal.append(_LINE, package=package, why=_why_not(package))
        if why_hidden(journal, package):
            modules: dict[str, Any] = sys.modules
            modules[package] = None  # as Python itself marks what is not to be found


def why_hidden(journal: Journal, package: str) -> str:
    """Why a package is hidden; empty where it is not."""
    return str(journal.last(_LINE, package=package).get("why", ""))


def _why_not(package: str) -> str:
    """Why a package cannot be imported; empty where it can."""
    try:
        tried = subprocess.run(
            [sys.executable, "-c", f"import {package}"], capture_output=True, text=True, timeout=_LONGEST_S
        )
    except subprocess.TimeoutExpired:
        return f"importing it takes more than {_LONGEST_S:g} s"
    if not tried.returncode:
        return ""
    return (tried.stderr.strip().splitlines() or [f"importing it ends with status {tried.returncode}"])[-1][:300]
