"""End the processes that a check has started when the check ends, even if it is killed."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_prctl = getattr(
    ctypes.CDLL(None), "prctl", None
)  # looked up here, because nothing should be loaded between fork and exec


def end_with_the_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent ends. Children of this process are not affected.

    Args:
        parent: process id of the parent; if it is gone already, this process ends at once. None skips this check.
    """
    if _prctl:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
