"""A child process in its own session that ends with this process and exchanges lines of JSON."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import secrets
import select
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
_PIECE = 1 << 16
_MARK = "SPECBENCH_ENGINE"  # set in the environment of a child and all its descendants
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?)")  # terminal colours and titles
# Looked up before forking: between fork and exec the child must not wait for a lock that another thread holds.
_PRCTL: Any = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def _die_with(parent: int) -> None:
    """Let the kernel kill the child when this process is killed and cannot do it."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # this process was killed before the child could request that
            os._exit(1)


class Ended(EngineFault):
    """The child process has ended."""


class Stalled(EngineFault):
    """The child process did not answer in time."""


class Child:
    """A process in a session of its own, so that Ctrl-C reaches only this process.

    The kernel kills it when this process ends, even when this process is killed.

    Args:
        environment: variables to set in addition to this process's own; API keys are removed.
        pipes: its stdin and stdout are pipes, see :meth:`send` and :meth:`next`; otherwise it has neither.
        longest: most bytes of a line that the child writes.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        pipes: bool = False,
        longest: int = 1 << 20,
    ) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  open as long as it
        self._mark = secrets.token_hex(16)
        self._longest, self._rest, self._unsent, self._read_ns = longest, b"", b"", 0
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
        if self.process.stdin is not None:
            os.set_blocking(self.process.stdin.fileno(), False)

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether the process is still running."""
        return self.process.poll() is None

    def send(self, **line: Any) -> None:
        """Write a line of JSON without waiting; :meth:`next` writes what does not fit into the pipe."""
        self._unsent += json.dumps(line).encode() + b"\n"
        self._write()

    def _write(self) -> None:
        assert self.process.stdin is not None
        try:
            self._unsent = self._unsent[os.write(self.process.stdin.fileno(), self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            raise self.died() from None

    def _pending(self) -> list[int]:
        return [self.process.stdin.fileno()] if self._unsent and self.process.stdin is not None else []

    def next(self, within_s: float, doing: str) -> tuple[int, dict[str, Any]]:
        """Return the next line and the ``time.perf_counter_ns`` at which its last byte arrived.

        Raises:
            Stalled: no line arrived in time; a part of one that did is kept for the next call.
            Ended: the process has ended.
            EngineFault: the line is too long or not a JSON object.
        """
        until = time.monotonic() + within_s
        assert self.process.stdout is not None
        out = self.process.stdout.fileno()
        blocks, size = [self._rest], len(self._rest)
        while b"\n" not in blocks[-1]:
            if size > self._longest:
                raise EngineFault(f"its worker wrote a line of more than {self._longest >> 20} MiB")
            left = max(0.0, until - time.monotonic())
            arrived, fits, _ = select.select([out], self._pending(), [], left)
            if fits:
                self._write()
                if not arrived:
                    continue
            if not arrived:
                self._rest = b"".join(blocks)
                raise Stalled(f"it stalled: no reply for {within_s:g} s while it had to {doing}")
            block = os.read(out, _PIECE)
            self._read_ns = time.perf_counter_ns()
            if not block:
                raise self.died()
            blocks.append(block)
            size += len(block)
        line, _, self._rest = b"".join(blocks).partition(b"\n")
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise EngineFault(f"its worker wrote an invalid reply: {one_line(repr(line[:80]), 100)}")
        return self._read_ns, found

    def last_words(self, lines: int = 2) -> str:
        """The last non-empty lines that the process wrote, joined; empty once it is closed."""
        if self._log.closed:
            return ""
        # pread: the child writes through the same open file, and reading must not move its position.
        size = os.fstat(self._log.fileno()).st_size
        text = os.pread(self._log.fileno(), 8192, max(0, size - 8192)).decode(errors="replace")
        found = [line for each in text.splitlines() if (line := one_line(_ESCAPES.sub("", each), 300))]
        return one_line(" · ".join(found[-lines:]), 300)

    def died(self, within_s: float = _PATIENCE_S) -> Ended:
        """The error for a process that ended by itself, or runs but no longer answers."""
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            how = "runs, but has closed its connection"
        else:
            how = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        words = self.last_words()
        return Ended(f"its process {how}{f', with the last output: {words}' if words else ''}")

    def kill(self) -> None:
        """Kill it and its process group at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(OSError, ValueError):  # unwritten data, or closed pipes
            self.process.communicate()
        self._log.close()

    def close(self) -> None:
        """End the process and all its descendants; a second call does nothing."""
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
        """Send a signal to all processes and wait until they have ended, or until the time is up."""
        until = time.monotonic() + _PATIENCE_S
        # A stopped process only reacts to SIGKILL. Processes that start children meanwhile get the signal again, with
        # them.
        while (family := self._family()) and time.monotonic() < until:
            _signal(family, sent)
            _signal(family, signal.SIGCONT)
            # Not psutil's wait: it would consume our child's exit code, and it takes zombies for running processes.
            while (self.running or any(map(_alive, family))) and time.monotonic() < until:
                time.sleep(_LOOK_S)

    def _family(self) -> list[psutil.Process]:
        """The process and all running descendants, found by their mark, because their parents may have ended."""
        descendants = {each.pid: each for each in tree(self.pid) if self.running}
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if each.environ().get(_MARK) == self._mark:
                    descendants[each.pid] = each
        return [each for each in descendants.values() if _alive(each)]


def _by_a_thread_that_stays(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Start a process from a thread that never ends, because the child dies with the thread that started it."""
    if threading.current_thread() is threading.main_thread():
        return start()
    return _stays().submit(start).result()


@cache
def _stays() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "engines")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def tree(pid: int) -> list[psutil.Process]:
    """A process and all its descendants; empty if it has ended."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _trees(pids: Sequence[int]) -> list[psutil.Process]:
    return [process for pid in pids for process in tree(pid)]


def _signal(processes: Sequence[psutil.Process], sent: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(sent)


def busy_s(pids: Sequence[int]) -> float:
    """Seconds of processor time of processes and their descendants, including ended ones that were waited for."""
    found = 0.0
    for process in _trees(pids):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += sum(process.cpu_times()[:4])
    return found


def resident_bytes(pids: Sequence[int]) -> int:
    """Memory of processes and their descendants; shared pages count in proportion."""
    found = 0
    for process in _trees(pids):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            found += process.memory_full_info().pss
    return found


def pause(pids: Sequence[int]) -> None:
    """Stop processes by signal until :func:`go_on`."""
    _signal(_trees(pids), signal.SIGSTOP)


def resume(pids: Sequence[int]) -> None:
    """Let stopped processes run again."""
    _signal(_trees(pids), signal.SIGCONT)


def replies() -> Callable[[dict[str, Any]], None]:
    """In the child: reserve stdout for lines of JSON, which the returned function writes; other prints go to stderr."""
    file = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def reply(line: dict[str, Any]) -> None:
        file.write(json.dumps(line).encode() + b"\n")
        file.flush()

    return reply
