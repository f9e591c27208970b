"""Processes: an engine's process, which ends with ours whatever happens, and how busy it is meanwhile. No torch."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any

import psutil

from specbench.common.errors import EngineFault, one_line

_PR_SET_PDEATHSIG = 1
_PATIENCE_S = 10.0
_LIBC: Any = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    """The kernel kills it when we are killed, who could not do it then."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """Child: a process in a session of its own, so that Ctrl-C is ours to hear and its children end with it.

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
        try:
            self.process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else self._log,
                stderr=self._log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        except OSError as error:
            self._log.close()
            raise EngineFault(f"{command[0]} cannot be started ({error.strerror})") from error

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def last_words(self, lines: int = 2) -> str:
        """The last lines that it wrote and that say something, as one."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 8192))
        found = [line for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return one_line(" · ".join(line.strip() for line in found[-lines:]), 300)

    def died(self) -> EngineFault:
        """What to raise when it has ended by itself."""
        code = self.process.wait(_PATIENCE_S)
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        said = self.last_words()
        return EngineFault(f"its process {how}{f', saying: {said}' if said else ''}")

    def close(self) -> None:
        """Ends it and what it has started; a second call does nothing."""
        if self._log.closed:
            return
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        family = tree(self.pid)
        for sent in (signal.SIGCONT, signal.SIGTERM):
            _signal(family, sent)
        _, left = psutil.wait_procs(family, _PATIENCE_S)
        _signal([*left, *(each for parent in left for each in _children(parent))], signal.SIGKILL)
        self.process.wait()
        self._log.close()


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
    """Seconds of processor time that some processes and their descendants have taken so far."""
    found = 0.0
    for pid in pids:
        for process in tree(pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                found += times.user + times.system
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
