"""Supervisor: a process without torch that watches the one which measures, and reports what that one cannot.

A plug-in's code can end a process in ways that nothing inside of it survives: a crash in a library, an exit past
Python, a loop in C. So the command runs in a child, forked before anything is imported, and this process waits. Where a
row ends the child, a new one goes on without that row in the same run's folder. Signals are passed on, and the child is
never left behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence

from specbench.common import heartbeat

#: Commands that run what anybody may have written, or decode.
WATCHED = frozenset(
    {"check-lossless", "judge", "perplexity", "profile", "quality", "run", "score", "sweep", "train", "trajectories"}
    | {"tune"}
)

_WAITED = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PASSED_ON = frozenset(_WAITED[1:])
# A crash, for which the row that decoded can answer. SIGKILL comes from outside: for lack of memory, or by hand.
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGSYS})
_LOOK_S = 1.0
_GRACE_S = 5.0  # behind the time that is allowed: the child breaks off itself what it can
_PLUGIN, _REFUSED = 6, 3
_KEPT = "what was finished is kept"
_PR_SET_PDEATHSIG = 1
_FROM_KERNEL = 0x80  # si_code of a signal by the terminal, which the child has got too


def watched(argv: Sequence[str]) -> bool:
    """Whether a command line is to be watched, and can be: where a process can wait for signals with a time limit."""
    asks = {"-h", "--help", "--help-all"} & {*argv}
    return bool(argv) and argv[0] in WATCHED and not asks and hasattr(signal, "sigtimedwait")


def supervise() -> int | None:
    """Fork, watch and go on, until the command has come to its end; the exit code, or None in a child, which does the
    work.
    """
    gone: dict[tuple[str, str], str] = {}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    while True:
        heartbeat.clear()
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            _never_left_behind(parent)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            _tell(gone)
            return None
        status, overdue = _wait(child)
        found = heartbeat.read()
        if found.ended is not None:  # it had come to its end, whatever happened on the way out
            return found.ended
        from specbench.results import BASELINE  # slow to import, and needed by nobody before

        how = _how(status, overdue, found)
        row = found.folder, found.row
        sent = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        if sent in _PASSED_ON and not overdue:  # before it could do more than die of it
            return _say("interrupted; nothing was begun", 128 + sent)
        theirs = overdue or sent is None or sent in _CRASHES
        if not theirs or found.row == BASELINE or not found.who or found.at == heartbeat.Activity.OURS:
            doing = f" while {found.row} was {_where(found)}" if found.row else ""
            return _say(f"the process that measures was ended{doing} ({how}); {_KEPT}, repeat to go on", _REFUSED)
        if not (found.folder and found.row) or row in gone:
            return _say(f"{found.who} ended the command ({how}); {_KEPT}, mend it or leave it out", _PLUGIN)
        gone[row] = f"{found.who} ended the process that measures ({how})"
        _say(f"{gone[row]}; going on without {found.row}", _PLUGIN, "note")


def _wait(child: int) -> tuple[int, bool]:
    """Waits for the child; (its status, whether it took too long and was ended for that).

    A child that has reported its end and does not end, because of what a plug-in has left in it, is ended.
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
            # What the terminal sends, it sends to all of its processes; what somebody sends, comes here alone.
            if came.si_signo in _PASSED_ON and came.si_code != _FROM_KERNEL:
                os.kill(child, came.si_signo)
            continue
        now = time.monotonic()
        found = heartbeat.read()
        # Counted by looks: a process that was stopped, or a machine that slept, has not taken that time.
        spent = spent + min(now - looked, 2 * _LOOK_S) if (found.at, found.beats) == last else 0.0
        last, looked = (found.at, found.beats), now
        if found.allowed_s and spent > found.allowed_s + _GRACE_S:
            os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1], True


def _how(status: int, overdue: bool, found: heartbeat.Reading) -> str:
    """How it ended, as a part of a sentence."""
    where = f", {_where(found)}"
    if overdue:
        return f"more than {found.allowed_s:g} s{where}, and no signal ended it; --step-timeout allows more"
    if not os.WIFSIGNALED(status):
        return f"by exit code {os.waitstatus_to_exitcode(status)}, past Python{where}"
    number = os.WTERMSIG(status)
    name = signal.Signals(number).name if number in {*signal.Signals} else f"signal {number}"
    return f"by {name}{', for lack of memory or by hand' if number == signal.SIGKILL else ''}{where}"


def _where(found: heartbeat.Reading) -> str:
    return heartbeat.WORDS[found.at]


def _never_left_behind(parent: int) -> None:
    """The child ends with its parent, however that ends."""
    if sys.platform == "linux":
        import ctypes  # as slow to import as all else here

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was quicker
        os._exit(_REFUSED)


def _tell(gone: dict[tuple[str, str], str]) -> None:
    """What the child has to know of those before it."""
    if gone:
        from specbench.common import plugins

        plugins.gone.update(gone)


def _say(text: str, code: int, kind: str = "error") -> int:
    line = "".join(each if each.isprintable() else " " for each in f"{kind}: {text}")
    with contextlib.suppress(OSError):  # nobody reads it
        os.write(2, f"{line}\n".encode("ascii", "backslashreplace"))
    return code
