"""Processes: an engine's process, which ends with ours whatever happens, and how busy it is meanwhile. No torch."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import IO, Any

import psutil

from specbench.common import keys
from specbench.common.errors import EngineFault, one_line

_PR_SET_PDEATHSIG = 1
_PATIENCE_S = 10.0
_LOOK_S = 0.01
_MARK = "SPECBENCH_ENGINE"  # in the environment of a child and of all that descends from it
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?)")  # colours, titles of a terminal
# Looked up before there is a child: between fork and exec it must not wait for a lock that another thread had.
_PRCTL: Any = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def _die_with(parent: int) -> None:
    """The kernel kills it when we are killed, who could not do it then."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # we were killed before it could ask for that
            os._exit(1)


class Child:
    """Child: a process in a session of its own, so that Ctrl-C is ours to hear and its children end with it.

    It ends with us by the kernel's word, even where we are killed; what it starts itself does so only where it sees to
    that, as everything that reads a pipe of its parent's does.

    Args:
        command: program and arguments.
        environment: what to set beside our own.
        pipes: its stdin and stdout are pipes, for bytes; else it has neither.

    Raises:
        EngineFault: it cannot be started.
    """

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, pipes: bool = False
    ) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  open as long as it
        self._mark = secrets.token_hex(16)
        ours = os.getpid()

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else self._log,
                stderr=self._log,
                env={**keys.environment(), **(environment or {}), _MARK: self._mark},
                start_new_session=True,
                preexec_fn=lambda: _die_with(ours),
            )

        try:
            self.process = _by_a_thread_that_stays(start)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._log.close()
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise EngineFault(f"{command[0]} cannot be started ({why})") from error

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def last_words(self, lines: int = 2) -> str:
        """The last lines that it wrote and that say something, as one; none once it is closed."""
        if self._log.closed:
            return ""
        # By place: the child writes through the same open file, and would go on where we had been reading.
        size = os.fstat(self._log.fileno()).st_size
        said = os.pread(self._log.fileno(), 8192, max(0, size - 8192)).decode(errors="replace")
        found = [line for each in said.splitlines() if (line := one_line(_ESCAPES.sub("", each), 300))]
        return one_line(" · ".join(found[-lines:]), 300)

    def died(self, within_s: float = _PATIENCE_S) -> EngineFault:
        """What to raise when it has ended by itself, or does not answer any more though it runs."""
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            how = "runs, but has closed its connection"
        else:
            how = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        said = self.last_words()
        return EngineFault(f"its process {how}{f', saying: {said}' if said else ''}")

    def close(self) -> None:
        """Ends it and what it has started, wherever that has gone; a second call does nothing."""
        if self._log.closed:
            return
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._end(signal.SIGTERM)
        self._end(signal.SIGKILL)
        self._log.close()

    def _end(self, sent: signal.Signals) -> None:
        """Sends a signal to all of them and waits until they have gone, or for as long as there is patience."""
        until = time.monotonic() + _PATIENCE_S
        # What is stopped hears nothing but SIGKILL. What starts more meanwhile is asked again with what it has started.
        while (family := self._family()) and time.monotonic() < until:
            _signal(family, sent)
            _signal(family, signal.SIGCONT)
            # Not psutil's wait: it would take our child's exit code, and to it what nobody has buried has not ended.
            while (self.running or any(map(_alive, family))) and time.monotonic() < until:
                time.sleep(_LOOK_S)

    def _family(self) -> list[psutil.Process]:
        """It and all that descends from it and has not ended; parents may have, so they are known by their mark."""
        descendants = {each.pid: each for each in tree(self.pid) if self.running}
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if each.environ().get(_MARK) == self._mark:
                    descendants[each.pid] = each
        return [each for each in descendants.values() if _alive(each)]


def _by_a_thread_that_stays(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Starts a process. To the kernel its parent is a thread of ours, and with the end of that one it would end."""
    if threading.current_thread() is threading.main_thread():
        return start()
    return _stays().submit(start).result()


@cache
def _stays() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "engines")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the real-time ones
        return f"signal {number}"


def _alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def tree(pid: int) -> list[psutil.Process]:
    """A process and all that descend from it; none where it has ended."""
    try:
        parent = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return []
    return [parent, *_children(parent)]


def _children(parent: psutil.Process) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = parent.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


def _signal(processes: Sequence[psutil.Process], sent: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(sent)


def busy_s(pids: Sequence[int]) -> float:
    """Seconds of processor time that some processes and their descendants have taken so far.

    Of descendants that have ended it is what their parent has been told by the kernel.
    """
    found = 0.0
    for pid in pids:
        for process in tree(pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                found += times.user + times.system + times.children_user + times.children_system
    return found


def resident_bytes(pids: Sequence[int]) -> int:
    """Memory that some processes and their descendants have in the machine's, what they share counted in parts."""
    found = 0
    for pid in pids:
        for process in tree(pid):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                found += process.memory_full_info().pss
    return found


def pause(pids: Sequence[int]) -> None:
    """Stops processes by signal until :func:`go_on`."""
    for pid in pids:
        _signal(tree(pid), signal.SIGSTOP)


def go_on(pids: Sequence[int]) -> None:
    """Lets stopped processes run again."""
    for pid in pids:
        _signal(tree(pid), signal.SIGCONT)
