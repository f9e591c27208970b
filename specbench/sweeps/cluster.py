"""Workers on a Ray cluster: one per GPU, wherever it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specbench.common import EnvironmentRefused, SpecbenchError, one_line
from specbench.results import RequestRecord, TaskSpec
from specbench.sweeps.executors import RETRIES, Listener, Make, left, lost
from specbench.sweeps.messages import Task, WorkerInfo, WorkerMessage


class _Actor:
    """The worker actor. Our errors come back as values, because an actor that raises in its constructor is dead."""

    def __init__(self, make: Make) -> None:
        self._worker, self._error = None, None
        try:
            self._worker = make()
        except SpecbenchError as error:
            self._error = error

    def ask(self, what: str, *arguments: Any) -> Any:
        if self._worker is None:
            return self._error
        try:
            return getattr(self._worker, what)(*arguments)
        except SpecbenchError as error:
            return error

    def decode(self, task: Task) -> Iterator[WorkerMessage | SpecbenchError]:
        if self._worker is None:
            assert self._error is not None
            yield self._error
            return
        try:
            yield from self._worker.decode(task)
        except SpecbenchError as error:
            yield error


class Cluster:
    """An executor on the Ray cluster that ``RAY_ADDRESS`` names, or on a local one started for it.

    A lost worker is replaced, and the rest of its task goes to a free worker. Default is one worker per GPU of the
    cluster, or one. EnvironmentRefused: Ray is missing, does not start, or has too few devices.
    """

    alone = False

    def __init__(self, make: Make, count: int | None = None) -> None:
        try:
            import ray
        except ImportError as error:
            raise EnvironmentRefused("Ray is not installed; pip install 'specbench-llm[cluster]'") from error
        self._ray = ray
        self._mine = not ray.is_initialized()
        if self._mine:
            try:
                ray.init(log_to_driver=False, include_dashboard=False, logging_level="error")
            except Exception as error:  # without a message on a busy machine: its parts did not start in time
                ray.shutdown()
                why = one_line(str(error), 160)
                raise EnvironmentRefused(f"cannot use the Ray cluster: {why}; fix it, or repeat") from error
        resources = ray.cluster_resources()
        gpus, cores = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
        self._count = count or gpus or 1
        if self._count > (gpus or cores):
            self.close()
            there = f"{gpus} GPUs" if gpus else f"{cores} cores and no GPU"
            raise EnvironmentRefused(f"{self._count} workers, but the Ray cluster has {there}; lower --workers")
        share = {"num_gpus": 1} if gpus else {"num_cpus": cores // self._count}
        self._make = ray.put(make)
        self._kind = ray.remote(**share)(_Actor)
        self._actors = [self._kind.remote(self._make) for _ in range(self._count)]
        try:
            found = [self._answer(actor, "describe") for actor in self._actors]
            self._described: WorkerInfo = found[0]
            if any(other.config.digest() != self._described.config.digest() for other in found[1:]):
                raise SpecbenchError("the workers differ in device or software; sweep on equal devices only")
        except BaseException:
            self.close()
            raise

    def describe(self) -> WorkerInfo:
        return self._described

    def run(self, tasks: Sequence[Task]) -> Iterator[WorkerMessage]:
        ray = self._ray
        waiting = deque((task, 0) for task in tasks)
        free = list(range(len(self._actors)))
        busy: dict[Any, tuple[int, Task, int, dict[str, str]]] = {}  # stream -> worker, task, losses, answers
        while waiting or busy:
            while waiting and free:
                task, losses = waiting.popleft()
                at = free.pop()
                stream = self._actors[at].decode.options(num_returns="streaming").remote(task)
                busy[stream] = (at, task, losses, {})
            ready, _ = ray.wait(list(busy), num_returns=1)
            for stream in ready:
                at, task, losses, texts = busy[stream]
                try:
                    record = ray.get(next(stream))
                except StopIteration:
                    del busy[stream]
                    free.append(at)
                    continue
                except (ray.exceptions.RayActorError, ray.exceptions.RayTaskError) as error:
                    del busy[stream]
                    if losses == RETRIES:
                        raise lost(task, losses + 1, type(error).__name__) from error
                    waiting.appendleft((left(task, texts), losses + 1))
                    self._actors[at] = self._kind.remote(self._make)
                    free.append(at)
                    continue
                if isinstance(record, SpecbenchError):
                    raise record
                if isinstance(record, RequestRecord):
                    texts[record.request_id] = record.text
                yield record

    def grade(self, records: Sequence[RequestRecord], *asked: TaskSpec) -> Mapping[str, dict[str, Any]]:
        found: Mapping[str, dict[str, Any]] = self._answer(self._actors[0], "grade", list(records), *asked)
        return found

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = self._answer(self._actors[0], "report")
        return found

    def listen(self, progress: Listener) -> None:
        """Do nothing: the workers are in other processes."""

    def close(self) -> None:
        for actor in getattr(self, "_actors", []):
            self._ray.kill(actor)
        self._actors = []
        if self._mine:
            self._ray.shutdown()

    def _answer(self, actor: Any, what: str, *arguments: Any) -> Any:
        try:
            found = self._ray.get(actor.ask.remote(what, *arguments))
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.RayTaskError) as error:
            why = str(error).strip().splitlines()[-1]  # the lines above it are the cluster's own traceback
            raise SpecbenchError(f"a worker of the Ray cluster was lost ({why}); repeat the command") from error
        if isinstance(found, SpecbenchError):
            raise found
        return found
