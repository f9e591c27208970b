"""Child processes that answer jobs over a pipe, for libraries that can hang: a hung process is killed and replaced.

A job and its answer are a line of JSON each. The parent's side is :class:`Workers`, the child's :func:`serve`.
"""

from __future__ import annotations

import contextlib
import json
import queue
import resource
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from specbench.common import Child, Ended, EngineFault, EnvironmentRefused, Stalled, replies
from specbench.evals.sandbox.sandbox import live

_START_S = 120.0  # imports, on a busy machine with a cold disk
_LONGEST = 64 << 20  # bytes of an answer
_MEMORY = 4 << 30  # bytes of a child's address space

Job = dict[str, Any]


class TimedOutError(Exception):
    """A job took too long; its worker was killed."""


class DiedError(Exception):
    """A worker ended during a job, most likely because memory ran out."""


class Workers:
    """A pool that grows to as many processes as threads call it at once. Safe to share between threads."""

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
            wall_s: time limit in seconds, without the start-up of the process.

        Raises:
            TimedOutError: it took longer.
            DiedError: the process ended.
            EnvironmentRefused: a process did not start.
        """
        with contextlib.suppress(queue.Empty, DiedError):  # a used process may have died because of an earlier job
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
            # sympy's order of iteration over a set must be the same every time
            self._child = Child(
                [sys.executable, "-m", module], environment={"PYTHONHASHSEED": "0"}, pipes=True, longest=_LONGEST
            )
        except EngineFault as error:  # no more processes, files or memory
            raise _not_started(module, error) from error
        self.process = self._child.process
        live.add(self.process)
        try:
            reply = self._line(_START_S)
        except (TimedOutError, DiedError) as error:
            reply = {"failed": str(error)}
        except BaseException:
            self.kill()
            raise
        if "failed" in reply:
            self.kill()
            raise _not_started(module, reply["failed"])

    def ask(self, job: Job, wall_s: float) -> Job:
        try:
            self._child.send(**job)
        except Ended as error:
            raise DiedError(str(error)) from None
        return self._line(wall_s)

    def _line(self, wall_s: float) -> Job:
        try:
            return self._child.next(wall_s, "answer")[1]
        except Stalled:
            raise TimedOutError(f"more than {wall_s:g} s of wall time") from None
        except EngineFault as error:
            raise DiedError(str(error)) from None

    def kill(self) -> None:
        self._child.kill()
        live.discard(self.process)


def _not_started(module: str, why: object) -> EnvironmentRefused:
    return EnvironmentRefused(f"{module} did not start ({why}); score again with fewer --workers")


def _close(idle: queue.LifoQueue[_Worker]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            idle.get_nowait().kill()


def serve(prepare: Callable[[], Callable[[Job], Job]]) -> None:
    """The child's side: answer jobs in the main thread, where SIGALRM works, until the parent closes the pipe.

    Args:
        prepare: imports the libraries and returns the function that answers a job. Its exception becomes the answer
            ``{"error": its name}``.
    """
    say = replies()
    _limit(resource.RLIMIT_AS, _MEMORY)
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
    """Ask the kernel to kill this process when the parent dies: a hung worker never notices a closed pipe."""
    user, system, *_ = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(user + system + wall_s) + 2)


def _limit(what: int, wanted: int) -> None:
    """This process's soft limit: ``wanted``, or the hard limit (``ulimit``, a cluster's login node) if that is less."""
    _, most = resource.getrlimit(what)
    resource.setrlimit(what, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))
