"""Orphans: none are left, because what a check starts ends with it, however it ends. No torch."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # looked up here: between fork and exec nothing should be


def end_with_the_parent(parent: int | None = None) -> None:
    """Has the kernel kill this process when its parent is gone; it does not hold for what this process starts.

    Args:
        parent: its process number; one that is gone already ends this process at once. None does not ask.
    """
    if _prctl:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
