"""Growth: what a decoder does and keeps at a step, counted and not timed, to be held to what it was before."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(package: str, work: Callable[[], object]) -> int:
    """Lines of a package's own code that some work runs, those of its loops each time."""
    count = 0
    inside = f"/{package.replace('.', '/')}/"

    def line(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def entered(frame: FrameType, event: str, arg: Any) -> Any:
        return line if inside in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def bytes_taken(work: Callable[[], object]) -> int:
    """The most memory that some work takes at a time: a copy of the text is seen though it is one line."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
