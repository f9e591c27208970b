"""Guests: methods and tasks, whose code anybody may have written. It runs in our process, and may not end it.

A command that a guest ends would pass for one that is done. ``sys.exit`` is caught wherever guests are called.
``os._exit`` cannot be caught, so it is replaced in this process. What goes past Python (ctypes, a signal, ``os.execv``)
is out of reach from in here; only a process that watches this one can tell. No torch.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from specbench.common.errors import PluginFault

#: What a guest raises that no ``except Exception`` above it stops. Where a step is timed it is caught by a plain
#: ``try``, which costs nothing, elsewhere by :func:`hosting`.
LEAVING: tuple[type[BaseException], ...] = (SystemExit,)

_really_exit = os._exit
_process = os.getpid()
_guests: dict[str, str] = {}  # package -> whose it is


class _HardExit(SystemExit):
    """What ``os._exit`` of a guest becomes."""


def expect(package: str, who: str) -> None:
    """Says whose a package is, before anything of it is imported; from here on its ``os._exit`` is a fault.

    Args:
        package: its import name.
        who: how an error names the guest: kind, name, and where it comes from.
    """
    _guests[package] = who
    os._exit = _exit


def fault(left: BaseException, who: str | None = None) -> PluginFault:
    """The error for a guest that ended the command.

    Args:
        left: what it raised.
        who: how to name it; None looks for it in the traceback.
    """
    frames, trace = [], left.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    # Innermost first; our own frames are of no interest.
    frames = [(frame, line) for frame, line in reversed(frames) if frame.f_globals.get("__name__") != __name__]
    who = who or next((found for frame, _ in frames if (found := _whose(frame))), "a library beneath specbench")
    code = left.code if isinstance(left, SystemExit) else left
    how = f"{'os._exit' if isinstance(left, _HardExit) else type(left).__name__}({code!r:.60})"
    where = f" at {Path(frames[0][0].f_code.co_filename).name} line {frames[0][1]}" if frames else ""
    return PluginFault(_line(who, how + where))


@contextmanager
def hosting(who: str) -> Iterator[None]:
    """Runs a guest's code where nothing is timed.

    Raises:
        PluginFault: it ended the command.
    """
    try:
        yield
    except LEAVING as left:
        raise fault(left, who) from left


def _line(who: str, how: str) -> str:
    return f"{who} ended the command instead of returning: {how}; what was finished is kept, mend it or leave it out"


def _exit(status: int) -> NoReturn:
    """In place of ``os._exit``. A forked child ends as it always did, and so does what no guest has called."""
    who = _above(sys._getframe(1)) if os.getpid() == _process else None
    if who is None:
        _really_exit(status)
    if threading.current_thread() is threading.main_thread():
        raise _HardExit(status)
    # Raised in another thread it would end that thread alone, and without a word.
    os.write(2, f"error: {_line(who, f'os._exit({status!r}) in a thread')}\n".encode())
    _really_exit(PluginFault.exit_code)


def _above(frame: FrameType | None) -> str | None:
    """The guest that a call came from, directly or through others."""
    while frame is not None:
        if who := _whose(frame):
            return who
        frame = frame.f_back
    return None


def _whose(frame: FrameType) -> str | None:
    module = str(frame.f_globals.get("__name__", ""))
    for package, who in _guests.items():
        if module == package or module.startswith(f"{package}."):
            return who
    # A helper beside the package that was registered; our own are not all guests.
    top = module.partition(".")[0]
    others = (who for package, who in _guests.items() if package.partition(".")[0] == top)
    return None if top == "specbench" else next(others, None)
