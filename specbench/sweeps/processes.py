"""Run workers as processes of this machine: one per device, each on its own cores."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from specbench.common import SpecbenchError
from specbench.results import RequestRecord, TaskSpec
from specbench.sweeps.executors import RETRIES, Listener, Make, left, lost
from specbench.sweeps.messages import Task, WorkerInfo, WorkerMessage


@dataclass(frozen=True)
class Place:
    """The place of a worker process: its cores, and environment variables set before anything is imported."""

    cores: tuple[int, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def places(count: int, devices: Sequence[str] = ()) -> list[Place]:
    """Places, each with an equal share of this process's cores, and a value of CUDA_VISIBLE_DEVICES if given."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    share = len(cores) // count
    if not share:
        raise SpecbenchError(f"{count} workers on {len(cores)} cores would wait for each other; lower --workers")
    return [
        Place(tuple(cores[at * share : (at + 1) * share]), {"CUDA_VISIBLE_DEVICES": devices[at]} if devices else {})
        for at in range(count)
    ]


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    task: Task | None = None
    texts: dict[str, str] = field(default_factory=dict)  # answers of its task so far


class Processes:
    """An executor with one process per place. A process that dies is replaced, and its task goes to a free worker.

    ``make`` must be picklable, and importable in a new process.
    """

    alone = False

    def __init__(self, make: Make, where: Sequence[Place]) -> None:
        self._make, self._places = make, list(where)
        # Not fork: CUDA and OpenMP do not survive it.
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []
        try:
            self._workers = [self._begin(place) for place in self._places]
            found = [self._ask(worker, "describe") for worker in self._workers]
        except BaseException:
            self.close()
            raise
        self._described: WorkerInfo = found[0]
        for other in found[1:]:
            if other.config.digest() != self._described.config.digest():
                self.close()
                raise SpecbenchError("the workers differ in device or software; sweep on equal devices only")

    def describe(self) -> WorkerInfo:
        return self._described

    def run(self, tasks: Sequence[Task]) -> Iterator[WorkerMessage]:
        waiting, losses = deque(tasks), dict.fromkeys(range(len(tasks)), 0)
        numbers = {id(task): number for number, task in enumerate(tasks)}
        while waiting or any(worker.task for worker in self._workers):
            for worker in self._workers:
                if waiting and worker.task is None:
                    self._give(worker, waiting.popleft())
            busy = {worker.pipe: worker for worker in self._workers if worker.task}
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                task = worker.task
                assert task is not None
                try:
                    kind, content = worker.pipe.recv()
                except (EOFError, OSError, pickle.UnpicklingError):  # it died, perhaps in the middle of a message
                    number = numbers[id(task)]
                    losses[number] += 1
                    if losses[number] > RETRIES:
                        raise lost(task, losses[number], self._why(worker)) from None
                    again = left(task, worker.texts)
                    numbers[id(again)] = number
                    waiting.appendleft(again)
                    self._replace(worker)
                    continue
                if kind == "record":
                    if isinstance(content, RequestRecord):
                        worker.texts[content.request_id] = content.text
                    yield content
                elif kind == "done":
                    worker.task = None
                else:
                    raise content

    def grade(self, records: Sequence[RequestRecord], *asked: TaskSpec) -> Mapping[str, dict[str, Any]]:
        found: Mapping[str, dict[str, Any]] = self._ask(self._workers[0], "grade", list(records), *asked)
        return found

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = self._ask(self._workers[0], "report")
        return found

    def listen(self, progress: Listener) -> None:
        """Do nothing: the workers are in other processes."""

    def close(self) -> None:
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers = []

    def _begin(self, place: Place) -> _Worker:
        mine, theirs = self._context.Pipe()
        before = {name: os.environ.get(name) for name in place.env}
        os.environ.update(place.env)  # a spawned process inherits the current environment
        try:
            process = self._context.Process(target=_work, args=(self._make, place.cores, theirs), daemon=True)
            process.start()
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        theirs.close()
        return _Worker(process, mine)

    def _replace(self, worker: _Worker) -> None:
        at = self._workers.index(worker)
        worker.pipe.close()
        worker.process.join()
        self._workers[at] = self._begin(self._places[at])

    @staticmethod
    def _give(worker: _Worker, task: Task) -> None:
        worker.task, worker.texts = task, {}
        with contextlib.suppress(OSError):  # it is dead; waiting for its answer will notice
            worker.pipe.send(("decode", (task,)))

    def _ask(self, worker: _Worker, what: str, *arguments: Any) -> Any:
        try:
            worker.pipe.send((what, arguments))
            kind, content = worker.pipe.recv()
        except (EOFError, OSError) as error:
            raise SpecbenchError(f"a worker process ended ({self._why(worker)}); repeat the command") from error
        if kind == "error":
            raise content
        return content

    @staticmethod
    def _why(worker: _Worker) -> str:
        worker.process.join(5)
        return f"exit code {worker.process.exitcode}"


def _work(make: Make, cores: Sequence[int], pipe: Connection) -> None:
    """The main function of a worker process: answer until the pipe closes."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    os.environ["OMP_NUM_THREADS"] = str(len(cores))
    # The parent may be gone without having read everything.
    with contextlib.suppress(EOFError, ConnectionError, KeyboardInterrupt):
        _serve(make, pipe)


def _serve(make: Make, pipe: Connection) -> None:
    try:
        worker = make()
    except SpecbenchError as error:
        pipe.send(("error", error))
        return
    while True:
        what, arguments = pipe.recv()
        try:
            if what == "decode":
                for record in worker.decode(*arguments):
                    pipe.send(("record", record))
                pipe.send(("done", None))
            else:
                pipe.send(("answer", getattr(worker, what)(*arguments)))
        except SpecbenchError as error:
            pipe.send(("error", error))
