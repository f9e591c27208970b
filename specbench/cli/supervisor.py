"""Watch the measuring process from a process without torch, and report what the measuring process cannot.

A plug-in can end a process in ways that it cannot handle itself: a crash in a library, an exit that bypasses Python, an
endless loop in C. So the command runs in a child, forked before imports, and this process waits. If a row ends the
child, a new child continues the run without that row. Signals are passed on, and the child always ends with this
process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence

from specbench.common import heartbeat

#: Commands that run plug-ins or decode.
WATCHED = frozenset(
    {
        "check-lossless",
        "judge",
        "perplexity",
        "profile",
        "quality",
        "reproduce",
        "run",
        "score",
        "sweep",
        "train",
        "trajectories",
    }
    | {"tune"}
)

_WAITED = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PASSED_ON = frozenset(_WAITED[1:])
# Crashes that the decoding row caused. SIGKILL comes from outside: out of memory, or the user.
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGSYS})
_LOOK_S = 1.0
_GRACE_S = 5.0  # after the time limit, in which the child interrupts what it can by itself
_PLUGIN, _REFUSED = 6, 3
_KEPT = "finished requests are kept"
_PR_SET_PDEATHSIG = 1
_FROM_KERNEL = 0x80  # si_code of a signal from the terminal, which the child also gets


def watched(argv: Sequence[str]) -> bool:
    """Whether a command should be watched, and this system can wait for signals with a time limit."""
    asks = {"-h", "--help", "--help-all"} & {*argv}
    return bool(argv) and argv[0] in WATCHED and not asks and hasattr(signal, "sigtimedwait")


def supervise() -> int | None:
    """Fork, watch, and restart without failed rows until the command ends.

    Returns the exit code, or None in a child, which does the work.
    """
    gone: dict[tuple[str, str], str] = {}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    while True:
        heartbeat.clear()
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            _end_with_parent(parent)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            _tell(gone)
            return None
        status, overdue = _wait(child)
        found = heartbeat.read()
        if found.ended is not None:  # the command had finished; later events are the interpreter's shutdown
            return found.ended
        from specbench.results import BASELINE  # slow to import, and only needed here

        how = _how(status, overdue, found)
        row = found.folder, found.row
        sent = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        if sent in _PASSED_ON and not overdue:  # the signal came before it could handle it
            return _say("interrupted before anything started", 128 + sent)
        theirs = overdue or sent is None or sent in _CRASHES
        if not theirs or found.row == BASELINE or not found.who or found.at == heartbeat.Activity.OURS:
            doing = f" while {found.row} was {_where(found)}" if found.row else ""
            return _say(
                f"the measuring process was ended{doing} ({how}); {_KEPT}, repeat the command to continue", _REFUSED
            )
        if not (found.folder and found.row) or row in gone:
            return _say(f"{found.who} ended the command ({how}); {_KEPT}; fix it or leave it out", _PLUGIN)
        gone[row] = f"{found.who} ended the measuring process ({how})"
        _say(f"{gone[row]}; continuing without {found.row}", _PLUGIN, "note")


def _wait(child: int) -> tuple[int, bool]:
    """Wait for the child; return (its status, whether it was ended because it took too long).

    A child that has reported its end but keeps running, because of a plug-in's thread, is ended.
    """
    last, spent, looked = (heartbeat.Activity.OURS, 0), 0.0, time.monotonic()
    reported = None
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status, False
        if heartbeat.read().ended is not None:
            reported = reported or time.monotonic()
            if time.monotonic() - reported > _GRACE_S:
                os.kill(child, signal.SIGKILL)
                return os.waitpid(child, 0)[1], False
        came = signal.sigtimedwait(_WAITED, _LOOK_S)
        if came is not None:
            # The terminal sends signals to all processes of the group; others send them only to this process.
            if came.si_signo in _PASSED_ON and came.si_code != _FROM_KERNEL:
                os.kill(child, came.si_signo)
            continue
        now = time.monotonic()
        found = heartbeat.read()
        # Counted in checks: a process that was stopped, or a machine that slept, did not use that time.
        spent = spent + min(now - looked, 2 * _LOOK_S) if (found.at, found.beats) == last else 0.0
        last, looked = (found.at, found.beats), now
        if found.allowed_s and spent > found.allowed_s + _GRACE_S:
            os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1], True


def _how(status: int, overdue: bool, found: heartbeat.Reading) -> str:
    """How the child ended, as part of a sentence."""
    where = f", {_where(found)}"
    if overdue:
        return f"more than {found.allowed_s:g} s{where}, and no signal ended it; --step-timeout allows more"
    if not os.WIFSIGNALED(status):
        return f"by exit code {os.waitstatus_to_exitcode(status)}, bypassing Python{where}"
    number = os.WTERMSIG(status)
    name = signal.Signals(number).name if number in {*signal.Signals} else f"signal {number}"
    return f"by {name}{'; out of memory, or killed by hand' if number == signal.SIGKILL else ''}{where}"


def _where(found: heartbeat.Reading) -> str:
    return heartbeat.WORDS[found.at]


def _end_with_parent(parent: int) -> None:
    """Let the child end with its parent."""
    if sys.platform == "linux":
        import ctypes  # slow to import, like the others here

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent has ended already
        os._exit(_REFUSED)


def _tell(gone: dict[tuple[str, str], str]) -> None:
    """Tell the child about earlier children."""
    if gone:
        from specbench.common import plugins

        plugins.gone.update(gone)


def _say(text: str, code: int, kind: str = "error") -> int:
    line = "".join(each if each.isprintable() else " " for each in f"{kind}: {text}")
    with contextlib.suppress(OSError):  # no reader
        os.write(2, f"{line}\n".encode("ascii", "backslashreplace"))
    return code
