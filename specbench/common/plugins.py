"""Call plug-ins (methods and tasks): trusted code that may be faulty and runs in this process.

Every exception of a plug-in, ``SystemExit`` included, becomes an error that names it. If a plug-in ends the process,
:mod:`specbench.cli.supervisor` reports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from specbench.common import heartbeat
from specbench.common.errors import PluginFault, SpecbenchError, one_line


class StepTimeout(BaseException):
    """Raised in a plug-in's call that takes too long; a plug-in's ``except Exception`` does not catch it."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"took more than {seconds:g} s")


#: Exceptions that end the command if they are not caught.
EXITS: tuple[type[BaseException], ...] = (SystemExit, StepTimeout)

_KEPT = "finished requests are kept; fix it or leave it out"


class Refused(Exception):
    """A plug-in returned something invalid; the text says what."""


#: (folder of a run, label of a row) -> how it ended the process that decoded it; set by the supervisor.
gone: dict[tuple[str, str], str] = {}


def ended_rows(folder: str) -> dict[str, str]:
    """The rows of a run that ended an earlier process of this command, and how."""
    return {row: how for (where, row), how in gone.items() if where == folder}


_guests: dict[str, str] = {}  # package -> its plug-in, as errors name it


def expect(package: str, who: str) -> None:
    """Register the owner of a package before any of it is imported."""
    _guests[package] = who


def fault(raised: BaseException, who: str | None = None, where: str = "", row: str = "") -> PluginFault:
    """The error for an exception of a plug-in, including those that would end the command.

    Args:
        who: name of the plug-in; None finds it in the traceback.
        where: the call that raised, such as "in draft".
    """
    if isinstance(raised, PluginFault):  # its text is complete
        raised.row = raised.row or row
        return raised
    frames, trace = [], raised.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    # Innermost frame first; our own frames are skipped.
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
    shown = f"{type(raised).__name__}: {text}" if text else type(raised).__name__
    return PluginFault(f"{who} failed{call} ({shown}{at}); {_KEPT}", row)


def _text_of(raised: BaseException) -> str:
    try:
        return str(raised)
    except BaseException:  # its __str__ may be the plug-in's, too
        return ""


@contextmanager
def ignoring_faults() -> Iterator[None]:
    """Ignore exceptions of a plug-in while its sequences are closed: the first fault is reported."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException:
        pass


@contextmanager
def plugin_call(who: str) -> Iterator[None]:
    """Run a plug-in's code outside timed segments.

    Raises:
        PluginFault: it tried to end the command, or raised an exception that is not ours.
    """
    cells = heartbeat.SHARED
    before = cells[heartbeat.AT]
    if before == heartbeat.Activity.OURS:
        heartbeat.record(who=who)
        cells[heartbeat.AT] = heartbeat.Activity.PLUGIN
        cells[heartbeat.BEATS] += 1
    try:
        yield
    except (SpecbenchError, KeyboardInterrupt):
        raise
    except BaseException as raised:  # also GeneratorExit and a plug-in's own subclasses of BaseException
        raise fault(raised, who) from raised
    finally:
        cells[heartbeat.AT] = before


def _whose(frame: FrameType) -> str | None:
    module = str(frame.f_globals.get("__name__", ""))
    for package, who in _guests.items():
        if module == package or module.startswith(f"{package}."):
            return who
    # A helper module outside the registered package; our own modules are not all plug-ins.
    top = module.partition(".")[0]
    others = (who for package, who in _guests.items() if package.partition(".")[0] == top)
    return None if top == "specbench" else next(others, None)
