"""Where a sweep's tasks run. Workers are made where they work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from specbench.common import SpecbenchError
from specbench.results import RequestRecord, TaskSpec
from specbench.sweeps.messages import Conditions, Task, WorkerInfo, WorkerMessage

#: A task whose worker was lost is given to another one this many times.
RETRIES = 2


class Listener(Protocol):
    """Who is told what goes on: a sweep's progress."""

    def phase(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...


class Working(Protocol):
    """What an executor needs of :class:`specbench.sweeps.worker.Worker`."""

    def describe(self) -> WorkerInfo: ...
    def decode(self, task: Task) -> Iterator[WorkerMessage]: ...
    def rest(self) -> Iterator[Conditions]: ...
    def listen(self, say: Listener) -> None: ...
    def grade(self, records: Sequence[RequestRecord], *asked: TaskSpec) -> Mapping[str, dict[str, Any]]: ...
    def report(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


Make = Callable[[], Working]


class Executor(Protocol):
    """Runs tasks on one or many workers; ``alone`` where one worker has the machine to itself, in sight of this
    process.
    """

    alone: bool

    def describe(self) -> WorkerInfo:
        """What the workers work on; they have been compared."""

    def run(self, tasks: Sequence[Task]) -> Iterator[WorkerMessage]:
        """The requests of all tasks in any order, each as it ends, and what else workers report.

        A cell that failed is reported by every worker that finds it so.
        """

    def grade(self, records: Sequence[RequestRecord], *asked: TaskSpec) -> Mapping[str, dict[str, Any]]:
        """Losslessness, by one worker, on prompts as a record has them, where that is another one than the workers'."""

    def report(self) -> dict[str, Any]:
        """What one worker's engine chose."""

    def listen(self, progress: Listener) -> None:
        """Has a worker of this process say what it waits for, while it does; those of others say nothing."""

    def close(self) -> None:
        """Ends the workers."""


class Here:
    """One worker in this process."""

    alone = True

    def __init__(self, make: Make) -> None:
        self._worker = make()

    def describe(self) -> WorkerInfo:
        return self._worker.describe()

    def run(self, tasks: Sequence[Task]) -> Iterator[WorkerMessage]:
        for task in tasks:
            yield from self._worker.decode(task)
        yield from self._worker.rest()

    def grade(self, records: Sequence[RequestRecord], *asked: TaskSpec) -> Mapping[str, dict[str, Any]]:
        return self._worker.grade(records, *asked)

    def report(self) -> dict[str, Any]:
        return self._worker.report()

    def listen(self, progress: Listener) -> None:
        self._worker.listen(progress)

    def close(self) -> None:
        self._worker.close()


def left(task: Task, texts: Mapping[str, str]) -> Task:
    """A task of which some answers are there by now; its stretches go on behind the numbers that those have."""
    return replace(task, segment=task.segment + len(texts), done={**task.done, **texts})


def lost(task: Task, times: int, why: str) -> SpecbenchError:
    """The error of a task that no worker survives."""
    some = ", ".join(task.labels[:3]) + (" …" if len(task.labels) > 3 else "")
    return SpecbenchError(
        f"{times} workers were lost over {task.prompts[0]} with {some} ({why}); "
        "what is finished is kept: leave the cell out or free memory, and repeat the command"
    )
