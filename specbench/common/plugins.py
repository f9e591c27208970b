"""Plug-ins: methods and tasks, trusted code that may be faulty and runs in this process.

Whatever a plug-in raises, ``SystemExit`` included, becomes an error that names it. What ends the process is seen by
:mod:`specbench.cli.supervisor`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from specbench.common import heartbeat
from specbench.common.errors import PluginFault, SpecbenchError, one_line


class StepTimeout(BaseException):
    """What a call that takes longer than it may is broken off by; a guest's ``except Exception`` does not stop it."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"took more than {seconds:g} s")


#: What ends the command where no one catches it.
EXITS: tuple[type[BaseException], ...] = (SystemExit, StepTimeout)

_KEPT = "what was finished is kept, mend it or leave it out"


class Refused(Exception):
    """What a guest returned is not what it has to return; the text says why."""


#: (folder of a run, label of a row) -> how it ended the process that decoded it. Only what watched that knows.
gone: dict[tuple[str, str], str] = {}


def ended_rows(folder: str) -> dict[str, str]:
    """The rows of a run that ended an earlier process of this command, each with how."""
    return {row: how for (where, row), how in gone.items() if where == folder}


_guests: dict[str, str] = {}  # package -> whose it is


def expect(package: str, who: str) -> None:
    """Register whose a package is, before anything of it is imported."""
    _guests[package] = who


def fault(raised: BaseException, who: str | None = None, where: str = "", row: str = "") -> PluginFault:
    """The error for what a guest raised, also where that would have ended the command.

    Args:
        who: how to name it; None looks for it in the traceback.
        where: which call of it that was, as "in draft".
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
    if isinstance(raised, StepTimeout):
        return PluginFault(f"{who} {raised}{call}{at}; {_KEPT}, or allow more by --step-timeout", row)
    if isinstance(raised, EXITS):
        code = raised.code if isinstance(raised, SystemExit) else raised
        how = f"{type(raised).__name__}({code!r:.60})"
        return PluginFault(f"{who} ended the command instead of returning: {how}{at}; {_KEPT}", row)
    if isinstance(raised, (Refused, SpecbenchError)):
        return PluginFault(f"{who} failed{call} ({raised}); {_KEPT}", row)
    text = one_line(_text_of(raised), 160)
    said = f"{type(raised).__name__}: {text}" if text else type(raised).__name__
    return PluginFault(f"{who} failed{call} ({said}{at}); {_KEPT}", row)


def _text_of(raised: BaseException) -> str:
    try:
        return str(raised)
    except BaseException:  # its __str__ is a guest's too
        return ""


@contextmanager
def ignoring_faults() -> Iterator[None]:
    """Drop what a plug-in raises while its sequences are given up: the fault that led there is reported."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException:
        pass


@contextmanager
def plugin_call(who: str) -> Iterator[None]:
    """Runs a guest's code where nothing is timed.

    Raises:
        PluginFault: it ended the command, or raised what is no error of ours.
    """
    cells = heartbeat.SHARED
    before = cells[heartbeat.AT]
    if before == heartbeat.Activity.OURS:
        heartbeat.record(who=who)
        cells[heartbeat.AT] = heartbeat.Activity.HOSTED
        cells[heartbeat.BEATS] += 1
    try:
        yield
    except (SpecbenchError, KeyboardInterrupt):
        raise
    except BaseException as raised:  # GeneratorExit and what a plug-in derives from BaseException, too
        raise fault(raised, who) from raised
    finally:
        cells[heartbeat.AT] = before


def _whose(frame: FrameType) -> str | None:
    module = str(frame.f_globals.get("__name__", ""))
    for package, who in _guests.items():
        if module == package or module.startswith(f"{package}."):
            return who
    # A helper beside the package that was registered; our own are not all guests.
    top = module.partition(".")[0]
    others = (who for package, who in _guests.items() if package.partition(".")[0] == top)
    return None if top == "specbench" else next(others, None)
