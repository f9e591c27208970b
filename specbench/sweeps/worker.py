"""A worker of a sweep: one device, the model loaded once, one engine for all configurations at one concurrency."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from specbench.common import PluginFault, step_timeout
from specbench.decoding import Method
from specbench.hardware import environment
from specbench.planning import Resolved
from specbench.results import BASELINE, RequestRecord, TaskSpec
from specbench.runner import Monitor, Order, ProgressSink, config_of, load_models, monitoring, prepare, session_of
from specbench.sweeps.driver import Silent
from specbench.sweeps.messages import Conditions, Failed, Task, WorkerInfo, WorkerMessage
from specbench.sweeps.observing import Notebook, Observer

# Enough steps to reach a configuration's shapes, on a short prompt, because many configurations are warmed up.
_BRIEF_PROMPT, _BRIEF_TOKENS = 16, 4


class Worker:
    """Decode tasks: AR and all configurations of a task.

    ``concurrency``: what tasks may ask for. Each has an engine of its own, for which automatic settings are chosen.
    """

    def __init__(self, resolved: Resolved, held_out: int, concurrency: Sequence[int]) -> None:
        self._model, _ = load_models(resolved)
        self._prepared = prepare(resolved.plan, resolved.tasks[0], self._model, held_out)
        self._held_out = held_out
        self._asked, self._concurrency = resolved, concurrency
        self._capacity = self._prepared.longest + self._prepared.budget
        self._session = session_of(resolved, self._model, self._capacity, metered=True)
        self._resolved = replace(resolved, methods=self._session.methods)
        self._warm: set[tuple[str, object]] = set()
        self._failed: dict[str, str] = {}
        self._observer: tuple[int, Observer] | None = None
        self._say: ProgressSink = Silent()

    def listen(self, say: ProgressSink) -> None:
        """Set the receiver of messages about what a task waits for."""
        self._say = say

    def describe(self) -> WorkerInfo:
        """The common configuration of the workers, with the times of automatic settings at every concurrency."""
        ids = list(self._prepared.prompts)
        split = len(ids) - self._held_out
        captured = environment.capture(str(self._model.model.device))
        config = config_of(self._resolved, self._model, self._prepared, captured, self._session.engine.code.linears)
        times = dict(self._session.calibration.used)
        for count in self._concurrency if times else ():
            self._engine_of(count)
            times |= self._session.calibration.used
        return WorkerInfo(
            config,
            captured.model_dump(mode="json"),
            tuple(ids[:split]),
            tuple(ids[split:]),
            {prompt_id: prompt.turns for prompt_id, prompt in self._prepared.prompts.items()},
            times,
        )

    def decode(self, task: Task) -> Iterator[WorkerMessage]:
        """Yield the remaining requests of a task, each as it ends, and readings of the machine between them.

        A configuration whose method fails is reported and not tried again; a PluginFault of AR ends the worker.
        """
        self._engine_of(task.concurrency)
        self._session.calibrate(task.times)
        self._resolved = replace(self._resolved, methods=self._session.methods)
        if task.asked:
            self._prepared = self._prepared.as_recorded(task.asked)
        prepared = self._prepared.only(task.prompts)
        resolved = self._warmed(task)
        order = Order(resolved, prepared, task.done, [task.repeat])
        yield from (Failed(label, self._failed[label]) for label in task.labels if label in self._failed)
        observer = self._observing(task)
        for number, (method, requests) in enumerate(order.stretches(), task.segment):
            assert isinstance(method, Method), "a sweep has no other engines"
            if observer:
                observer.before(number)
            try:
                with step_timeout(resolved.plan.step_timeout):
                    for record in self._session.decode(method, requests, number):
                        order.add(record)
                        yield record
            except PluginFault as fault:
                order.give_up(self._fail(fault))
                yield Failed(fault.row, self._failed[fault.row])
            if observer:
                yield from observer.news()

    def rest(self) -> Iterator[Conditions]:
        """The readings of the machine after the last segment, when no task follows."""
        if self._observer:
            self._observer[1].after()
            yield from self._observer[1].news()

    def grade(self, records: Sequence[RequestRecord], *asked: TaskSpec) -> Mapping[str, dict[str, Any]]:
        """Losslessness of every configuration on its answers, as :meth:`specbench.runner.session.Session.grade`."""
        for record in asked:
            self._prepared = self._prepared.as_recorded(record)
        methods = {method.label: method for method in self._resolved.methods}
        mine = [record for record in records if record.method in methods]
        decoded = [methods[label] for label in dict.fromkeys(record.method for record in mine)]
        return self._session.grade(self._prepared, mine, decoded)

    def step_seconds(self) -> list[tuple[int, float]]:
        """Measured (rows, seconds) of steps of one sequence, up to the widest tree."""
        return list(self._session.engine.step_seconds(self._resolved.max_rows))

    def report(self) -> dict[str, Any]:
        """The engine's choices and the cost of its captures."""
        return self._session.report()

    def close(self) -> None:
        """Free the device."""
        if self._observer:
            self._observer[1].close()
        self._session.close()

    def _engine_of(self, concurrency: int) -> None:
        """Open the engine for so many sequences unless it is open."""
        if self._session.engine.slots == concurrency:
            return
        if self._observer:
            self._observer[1].close()
            self._observer = None
        self._session.close()
        plan = self._asked.plan.model_copy(update={"concurrency": concurrency})
        self._resolved = replace(self._asked, plan=plan)  # prepared methods would keep their heads and draft models
        self._session = session_of(self._resolved, self._model, self._capacity, metered=True)
        self._resolved = replace(self._resolved, methods=self._session.methods)
        self._warm.clear()

    def _observing(self, task: Task) -> Observer | None:
        """The monitor of a task's part; a task of another part ends the monitor of the part before."""
        if task.conditions is None:
            return None
        if self._observer is None or self._observer[0] != task.concurrency:
            if self._observer:
                self._observer[1].close()
            self._observer = task.concurrency, Observer(task.conditions, self._reader)
        return self._observer[1]

    def _reader(self, notebook: Notebook) -> AbstractContextManager[Monitor]:
        plan = self._resolved.plan
        return monitoring(
            [self._session], self._resolved.simulated, notebook, self._say, patience=plan.patience,
            text=self._prepared.ids[0],
        )  # fmt: skip

    def _fail(self, fault: PluginFault) -> str:
        """Store a configuration's fault and return its label."""
        if fault.spoils_all or fault.row in ("", BASELINE):
            raise fault
        self._failed[fault.row] = str(fault)
        return fault.row

    def _warmed(self, task: Task) -> Resolved:
        """The plan of a task's configurations after the warm-up; those that fail are left out."""
        while True:
            resolved = self._of(task.labels)
            try:
                with step_timeout(resolved.plan.step_timeout):
                    self._warm_up(resolved)
            except PluginFault as fault:
                self._fail(fault)
            else:
                return resolved

    def _of(self, labels: Sequence[str]) -> Resolved:
        wanted = set(labels) - self._failed.keys()
        return replace(
            self._resolved, methods=tuple(method for method in self._resolved.methods if method.label in wanted)
        )

    def _warm_up(self, resolved: Resolved) -> None:
        """Warm up each method's widest tree on a long prompt, then every width briefly if first steps are expensive.

        A method's own models may capture work per configuration, so with those every configuration is warmed up.
        """
        fresh: dict[tuple[str, object], Method] = {}
        for method in sorted(resolved.methods, key=lambda method: -method.max_rows):
            kind = method.max_rows if method.shared is None else method.label
            key = (method.name, kind)
            if key not in self._warm:
                fresh.setdefault(key, method)
        known = {name for name, _ in self._warm}
        widest: dict[str, Method] = {}
        for method in fresh.values():
            if method.name not in known:
                widest.setdefault(method.name, method)
        session = self._session
        if widest:
            session.warm_up(self._prepared, list(widest.values()), tokens=_BRIEF_TOKENS)
        requests = session.warm_up_requests(self._prepared, _BRIEF_PROMPT, _BRIEF_TOKENS)
        for temperature in self._prepared.temperatures if fresh else ():
            for method in fresh.values():
                costs = session.engine.first_steps_cost or method.shared is not None
                if method in widest.values() or not costs:
                    continue
                session.capture(self._prepared.longest, [method], temperature)
                for _ in session.decode(method, [replace(r, temperature=temperature) for r in requests]):
                    pass
        self._warm |= fresh.keys()
