"""Child processes that answer jobs over a pipe, for libraries that can hang: the hung one is killed and replaced.

A job and its answer are a line of JSON each. The parent's side is :class:`Workers`, the child's :func:`serve`.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import resource
import selectors
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from specbench.common import EnvironmentRefused, keys
from specbench.evals.sandbox.sandbox import live

_START_S = 120.0  # imports, on a busy machine with a cold disk
_LONGEST = 64 << 20  # bytes of an answer
_MEMORY = 4 << 30  # bytes of address space of a child

Job = dict[str, Any]


class TimedOutError(Exception):
    """A job took longer than it may; its worker is gone."""


class DiedError(Exception):
    """A worker ended in the middle of a job, most likely for want of memory."""


class Workers:
    """A pool that grows to as many processes as there are threads that ask at once. Safe to share between them."""

    def __init__(self, module: str) -> None:
        """
        Args:
            module: run as ``python -m module``; calls :func:`serve`.
        """
        self.module = module
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        weakref.finalize(self, _close, self._idle)  # also when the interpreter ends

    def ask(self, job: Mapping[str, Any], wall_s: float) -> Job:
        """The answer to one job.

        Args:
            wall_s: seconds that it may take; start-up of the process not counted.

        Raises:
            TimedOutError: it took longer.
            DiedError: the process ended.
            EnvironmentRefused: a process did not start.
        """
        with contextlib.suppress(queue.Empty, DiedError):  # what a used one died of may be an earlier job's doing
            return self._ask(self._idle.get_nowait(), job, wall_s)
        return self._ask(_Worker(self.module), job, wall_s)

    def _ask(self, worker: _Worker, job: Mapping[str, Any], wall_s: float) -> Job:
        try:
            answer = worker.ask({**job, "wall_s": wall_s}, wall_s)
        except BaseException:
            worker.kill()
            raise
        self._idle.put(worker)
        return answer


class _Worker:
    def __init__(self, module: str) -> None:
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**keys.environment(), "PYTHONHASHSEED": "0"},  # sympy's way through a set must not vary by the day
                start_new_session=True,  # Ctrl-C is the parent's
            )
        except OSError as error:  # no more processes, files or memory
            raise EnvironmentRefused(
                f"{module} did not start ({error.strerror}); score again with fewer --workers"
            ) from error
        live.add(self.process)
        self._unread = b""
        try:
            said = self._line(_START_S)
        except (TimedOutError, DiedError) as error:
            said = {"failed": str(error)}
        except BaseException:
            self.kill()
            raise
        if "failed" in said:
            self.kill()
            raise EnvironmentRefused(f"{module} did not start ({said['failed']}); score again with fewer --workers")

    def ask(self, job: Job, wall_s: float) -> Job:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(job).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise DiedError("the worker process ended") from None
        return self._line(wall_s)

    def _line(self, wall_s: float) -> Job:
        assert self.process.stdout is not None
        end = time.monotonic() + wall_s
        blocks, size = [self._unread], len(self._unread)
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in blocks[-1]:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise TimedOutError(f"more than {wall_s:g} s of wall time")
                if not (block := os.read(self.process.stdout.fileno(), 1 << 16)):
                    raise DiedError("the worker process ended")
                blocks.append(block)
                size += len(block)
                if size > _LONGEST:
                    raise DiedError("the worker process writes without end")
        line, _, self._unread = b"".join(blocks).partition(b"\n")
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):  # a library found the descriptor and wrote to it
            raise DiedError("the worker process wrote something else than its answer")
        return answer

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):  # what was not written yet
            self.process.communicate()
        live.discard(self.process)


def _close(idle: queue.LifoQueue[_Worker]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            idle.get_nowait().kill()


def serve(prepare: Callable[[], Callable[[Job], Job]]) -> None:
    """The child's side: answers jobs in the main thread, where SIGALRM works, until the parent closes the pipe.

    Args:
        prepare: does the imports and returns what answers a job. An exception of the latter is the answer
            ``{"error": its name}``.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what a library prints is no answer

    def say(answer: Job) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY if most == resource.RLIM_INFINITY else min(_MEMORY, most), most))
    try:
        handle = prepare()
    except Exception as error:
        say({"failed": f"{type(error).__name__}: {error}"})
        return
    say({"ready": True})
    for line in sys.stdin:
        job = json.loads(line)
        _end_within(job.pop("wall_s"))
        try:
            answer = handle(job)
        except Exception as error:
            answer = {"error": type(error).__name__}
        say(answer)


def _end_within(wall_s: float) -> None:
    """Be killed by the kernel when the parent no longer can: one that hangs never learns that its pipe was closed."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + wall_s) + 2, most))
