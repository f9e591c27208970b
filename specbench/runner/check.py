"""Losslessness check: every prompt once with every method, nothing timed and nothing written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specbench.decoding import Method
from specbench.models import LoadedModel
from specbench.results import BASELINE, RequestRecord
from specbench.runner.order import Order
from specbench.runner.prompts import prepare
from specbench.runner.resolving import Resolved
from specbench.runner.session import session_of
from specbench.runner.tasks import TaskPlan


@dataclass(frozen=True)
class Checked:
    """Losslessness of every method of a plan on one task, AR itself left out.

    Attributes:
        prompts: ids of the prompts that were answered.
        drawn: how many they are of how many, and how they were chosen, in words.
        tallies: method label -> :func:`specbench.runner.lossless.tally`; of methods that draw noise of their own only
            where nothing was sampled.
        sampled: prompt -> token ids of AR's answer to its first turn, and the same of each method with its own noise,
            by label; empty where nothing was sampled. Answers of several seeds together can be compared.
    """

    prompts: Sequence[str]
    drawn: str
    tallies: Mapping[str, dict[str, Any]]
    sampled: Mapping[str, Mapping[str, Sequence[int]]]


def check_lossless(resolved: Resolved, task: TaskPlan, model: LoadedModel) -> Checked:
    """Decodes every prompt once with every method and grades the answers."""
    prepared = prepare(resolved.plan, task, model)
    records: list[RequestRecord] = []
    with session_of(resolved, model, prepared.longest + prepared.budget) as session:
        order = Order(replace(resolved, methods=session.methods), prepared, {})
        for method, requests in order.stretches():
            assert isinstance(method, Method), "a check has no other engines"
            for record in session.decode(method, requests):
                order.add(record)
                records.append(record)
        graded = session.grade(prepared, records)
        greedy = {temperature: session.sampling(temperature).greedy for temperature in prepared.temperatures}
    sampled: dict[str, dict[str, Sequence[int]]] = defaultdict(dict)
    own = {method.label for method in resolved.methods if method.own_noise}
    for record in records:
        wanted = own and record.turn == 1 and record.method in own | {BASELINE}
        if wanted and not greedy[prepared.prompts[record.prompt_id].temperature]:
            sampled[record.method][record.prompt_id] = record.output_ids
    # In the order of the plan: that of the records is drawn by lot.
    others = [method.label for method in resolved.methods if method.label != BASELINE]
    return Checked(
        list(prepared.prompts),
        prepared.spec.said,
        {label: graded[label] for label in others if label in graded},
        sampled,
    )
