"""Guests: methods and tasks, whose code anybody may have written. It runs in our process, and may not end it.

A command that a guest ends would pass for one that is done. Whatever it raises but KeyboardInterrupt, ``sys.exit`` and
classes of its own that derive from BaseException too, is caught wherever guests are called, and becomes an error that
names it. ``os._exit`` cannot be caught, so it is replaced in this process. What
goes past Python (ctypes, a signal, ``os.execv``) is out of reach from in here; the command line has a process that
watches this one and can tell (:mod:`specbench.cli.supervisor`), with what :mod:`specbench.common.pulse` says. No torch.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from specbench.common import pulse
from specbench.common.errors import PluginFault, SpecbenchError, one_line


class Overdue(BaseException):
    """What a call that takes longer than it may is broken off by; a guest's ``except Exception`` does not stop it.

    Args:
        seconds: that it might have taken.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(f"took more than {seconds:g} s")


#: What ends the command where no one catches it.
LEAVING: tuple[type[BaseException], ...] = (SystemExit, Overdue)

_KEPT = "what was finished is kept, mend it or leave it out"


class Refused(Exception):
    """What a guest returned is not what it has to return; the text says why."""


#: (folder of a run, label of a row) -> how it ended the process that decoded it. Only what watched that knows.
gone: dict[tuple[str, str], str] = {}


def gone_from(folder: str) -> dict[str, str]:
    """The rows of a run that ended an earlier process of this command, each with how."""
    return {row: how for (where, row), how in gone.items() if where == folder}


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


def fault(raised: BaseException, who: str | None = None, where: str = "", row: str = "") -> PluginFault:
    """The error for what a guest raised, also where that would have ended the command.

    Args:
        raised: what it raised.
        who: how to name it; None looks for it in the traceback.
        where: which call of it that was, as "in draft".
        row: label of the row that it decodes.
    """
    if isinstance(raised, PluginFault):  # it says all of that
        raised.row = raised.row or row
        return raised
    frames, trace = [], raised.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    # Innermost first; our own frames are of no interest.
    frames = [(frame, line) for frame, line in reversed(frames) if frame.f_globals.get("__name__") != __name__]
    who = who or next((found for frame, _ in frames if (found := _whose(frame))), "a library beneath specbench")
    theirs = next((each for each in frames if _whose(each[0])), frames[0] if frames else None)
    at = f" at {Path(theirs[0].f_code.co_filename).name} line {theirs[1]}" if theirs else ""
    call = f" {where}" if where else ""
    if isinstance(raised, Overdue):
        return PluginFault(f"{who} {raised}{call}{at}; {_KEPT}, or allow more by --step-timeout", row)
    if isinstance(raised, LEAVING):
        code = raised.code if isinstance(raised, SystemExit) else raised
        how = f"{'os._exit' if isinstance(raised, _HardExit) else type(raised).__name__}({code!r:.60})"
        return PluginFault(_line(who, how + at), row)
    if isinstance(raised, (Refused, SpecbenchError)):
        return PluginFault(f"{who} failed{call} ({raised}); {_KEPT}", row)
    text = one_line(_text_of(raised), 160)
    said = f"{type(raised).__name__}: {text}" if text else type(raised).__name__
    return PluginFault(f"{who} failed{call} ({said}{at}); {_KEPT}", row)


def leave_if_forked(process: int) -> None:
    """End this process at once, without a word, if it is a child that a plug-in forked and that came back to us.

    Two processes would write the same records otherwise. Call it after each call of a plug-in.

    Args:
        process: id of the process that made the call.
    """
    if os.getpid() != process:
        _really_exit(PluginFault.exit_code)


def interrupts_itself(raised: KeyboardInterrupt) -> bool:
    """Whether a guest raised what Ctrl-C raises. It can be told where Ctrl-C has a handler of ours, as on the command
    line: a real one comes from there; and where it raises nothing, as in a shell's background."""
    trace = raised.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    unknown = signal.getsignal(signal.SIGINT) in (signal.default_int_handler, None)
    return not unknown and trace is not None and _whose(trace.tb_frame) is not None


def _text_of(raised: BaseException) -> str:
    try:
        return str(raised)
    except BaseException:  # its __str__ is a guest's too
        return ""


@contextmanager
def unheard() -> Iterator[None]:
    """Drop what a plug-in raises while its sequences are given up: the fault that led there is reported."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException:
        pass


@contextmanager
def hosting(who: str) -> Iterator[None]:
    """Runs a guest's code where nothing is timed.

    Raises:
        PluginFault: it ended the command, or raised what is no error of ours.
    """
    cells = pulse.CELLS
    before, process = cells[pulse.AT], os.getpid()
    if before == pulse.At.OURS:
        pulse.told(who=who)
        cells[pulse.AT] = pulse.At.HOSTED
        cells[pulse.BEATS] += 1
    try:
        yield
    except (SpecbenchError, KeyboardInterrupt):
        raise
    except BaseException as raised:  # GeneratorExit and what a plug-in derives from BaseException, too
        leave_if_forked(process)
        raise fault(raised, who) from raised
    finally:
        leave_if_forked(process)
        cells[pulse.AT] = before


def _line(who: str, how: str) -> str:
    return f"{who} ended the command instead of returning: {how}; {_KEPT}"


def _exit(status: int) -> NoReturn:
    """In place of ``os._exit``. A forked child ends as it always did, and so does what no guest has called."""
    who = _above(sys._getframe(1)) if os.getpid() == _process else None
    if who is None:
        _really_exit(status)
    if threading.current_thread() is threading.main_thread():
        raise _HardExit(status)
    # Raised in another thread it would end that thread alone, and without a word.
    os.write(2, f"error: {_line(who, f'os._exit({status!r}) in a thread')}\n".encode())
    pulse.ended(PluginFault.exit_code)
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
