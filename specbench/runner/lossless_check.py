"""Check losslessness: every prompt once with every method, untimed and without a run folder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from specbench.backends import Row, Served
from specbench.common import step_timeout
from specbench.models import LoadedModel
from specbench.planning import Resolved, TaskPlan
from specbench.results import BASELINE, RequestRecord
from specbench.runner.external.external_row import ExternalRow
from specbench.runner.external.serving import served
from specbench.runner.order import Order
from specbench.runner.prompts import prepare
from specbench.runner.session import Session, session_of


@dataclass(frozen=True)
class Checked:
    """Losslessness of every method of a plan on one task, AR itself left out.

    Attributes:
        tallies: method label -> :func:`specbench.runner.grades.lossless.tally`; methods with their own noise have one
            only if decoding was greedy.
        sampled: prompt -> token ids of AR's answer to its first turn, and of each method with its own noise, by label;
            empty if decoding was greedy. Answers of several seeds together can be compared.
    """

    prompts: Sequence[str]
    drawn: str
    tallies: Mapping[str, dict[str, Any]]
    sampled: Mapping[str, Mapping[str, Sequence[int]]]


class CheckedEngines:
    """Other engines for several checks of a task, so that each is started once.

    Close it when done, or use it as a context manager.
    """

    def __init__(self) -> None:
        self._outside: dict[str, ExternalRow] = {}
        self._of: tuple[str, int] | None = None
        self._session: Session | None = None

    def rows_for(self, session: Session, resolved: Resolved, task: TaskPlan) -> Mapping[str, ExternalRow]:
        """The started rows of a plan by label, for the current check."""
        self._session = session
        of = task.card.name, session.engine.capacity
        if of != self._of:
            self.close()
            self._of = of
            for row in resolved.rows:
                outside = self._outside[row.label] = ExternalRow(row, self._served(session, row), session.sampling())
                outside.start()
        for outside in self._outside.values():
            outside.sampling = session.sampling()
        return self._outside

    def close(self) -> None:
        """Ends them."""
        for outside in self._outside.values():
            outside.close()
        self._outside = {}

    def __enter__(self) -> CheckedEngines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _served(self, session: Session, row: Row) -> Served:
        return replace(served(session, row), apart=self._apart)

    def _apart(self) -> AbstractContextManager[Any]:
        assert self._session is not None  # each check has a session of its own on the same model
        return self._session.engine.detached()


def check_lossless(
    resolved: Resolved, task: TaskPlan, model: LoadedModel, engines: CheckedEngines | None = None
) -> Checked:
    """Decode every prompt once with every method and grade the answers.

    ``engines`` are the started engines of earlier checks, which the plan's rows use. EngineFault names the row that
    failed.
    """
    prepared = prepare(resolved.plan, task, model)
    records: list[RequestRecord] = []
    with (
        step_timeout(resolved.plan.step_timeout),
        session_of(resolved, model, prepared.longest + prepared.budget) as session,
    ):
        order = Order(replace(resolved, methods=session.methods), prepared, {})
        outside = engines.rows_for(session, resolved, task) if engines else {}
        for method, requests in order.stretches():
            if isinstance(method, Row):
                decoded = outside[method.label].decode(requests, 0)
            else:
                decoded = session.decode(method, requests)
            for record in decoded:
                order.add(record)
                records.append(record)
        graded = session.grade(prepared, records, rows=resolved.rows)
        greedy = {temperature: session.sampling(temperature).greedy for temperature in prepared.temperatures}
    sampled: dict[str, dict[str, Sequence[int]]] = defaultdict(dict)
    own = {method.label for method in resolved.everyone if method.own_noise}
    for record in records:
        wanted = own and record.turn == 1 and record.method in own | {BASELINE}
        if wanted and not greedy[prepared.prompts[record.prompt_id].temperature]:
            sampled[record.method][record.prompt_id] = record.output_ids
    # In the order of the plan: the order of the records is random.
    others = [method.label for method in resolved.everyone if method.label != BASELINE]
    return Checked(
        list(prepared.prompts),
        prepared.spec.description,
        {label: graded[label] for label in others if label in graded},
        sampled,
    )
