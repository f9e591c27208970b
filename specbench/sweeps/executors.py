"""Where a sweep's tasks run. Workers are created where they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from specbench.common import SpecbenchError
from specbench.results import RequestRecord, TaskSpec
from specbench.sweeps.messages import Conditions, Task, WorkerInfo, WorkerMessage

#: A task of a lost worker is given to another worker this many times.
RETRIES = 2


class Listener(Protocol):
    """Receives messages: a sweep's progress."""

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
    """Run tasks on one or several workers.

    ``alone``: one worker has the machine to itself and runs in this process."""

    alone: bool

    def describe(self) -> WorkerInfo:
        """The configuration that all workers agree on."""

    def run(self, tasks: Sequence[Task]) -> Iterator[WorkerMessage]:
        """Yield the requests of all tasks in any order, each as it ends, and other reports of workers.

        A failed configuration is reported by every worker that notices it.
        """

    def grade(self, records: Sequence[RequestRecord], *asked: TaskSpec) -> Mapping[str, dict[str, Any]]:
        """Losslessness, graded by one worker, on the prompts of a record if they differ from the workers' prompts."""

    def report(self) -> dict[str, Any]:
        """The choices of one worker's engine."""

    def listen(self, progress: Listener) -> None:
        """Let a worker in this process report what it waits for; workers in other processes report nothing."""

    def close(self) -> None:
        """End the workers."""


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
    """A task with some existing answers; the numbers of its segments continue after theirs."""
    return replace(task, segment=task.segment + len(texts), done={**task.done, **texts})


def lost(task: Task, times: int, why: str) -> SpecbenchError:
    """The error for a task whose workers are lost every time."""
    some = ", ".join(task.labels[:3]) + (" …" if len(task.labels) > 3 else "")
    return SpecbenchError(
        f"{times} workers were lost over {task.prompts[0]} with {some} ({why}); "
        "finished requests are kept: leave the configuration out or free memory, and repeat the command"
    )
