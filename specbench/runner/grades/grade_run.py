"""Grade every method's answers in a run against AR's, for turns with the same input."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specbench.analysis import merge
from specbench.backends import Row
from specbench.decoding import Method
from specbench.engine import Engine, Sampling
from specbench.results import BASELINE, RequestRecord, request_key
from specbench.runner.grades import lossless
from specbench.runner.order import Turns
from specbench.runner.prompts import Prepared


def grade(
    engine: Engine,
    methods: Sequence[Method],
    prepared: Prepared,
    records: Sequence[RequestRecord],
    sampling: Callable[[float | None], Sampling],
    rows: Sequence[Row] = (),
    reference: str = BASELINE,
) -> Mapping[str, dict[str, Any]]:
    """Losslessness by method (:func:`specbench.runner.grades.lossless.tally`); only turns with the same input count.

    Sampled answers of a method with its own noise are left out: single answers cannot be compared. Those of a method
    with an acceptance rule of its own are lossy even if they happen to equal AR's. The noise floor is
    measured with as many rows as the methods' largest tree. ``sampling`` gives the sampling for a task's temperature;
    ``rows`` are other engines' rows; ``reference`` is the row that the others are compared with.
    """
    elsewhere = {row.label for row in rows}
    other = {method.label for method in methods if method.acceptance is not None}
    own = {method.label for method in methods if method.own_noise} | elsewhere
    widest = max(method.max_rows for method in methods)
    turns = Turns(prepared, {record.request_id: record.text for record in records})
    # Repeats share seed and prompt, so each must give the same ids as AR's first pass; all repeats are graded.
    baselines: dict[tuple[str, int], RequestRecord] = {}
    for record in records:
        if record.method == reference:
            baselines.setdefault((record.prompt_id, record.turn), record)
    temperatures: dict[float | None, list[RequestRecord]] = defaultdict(list)
    for record in records:
        temperatures[prepared.prompts[record.prompt_id].temperature].append(record)
    tallies: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for temperature, group in temperatures.items():
        engine.sampling = sampling(temperature)
        graded: dict[str, dict[str, list[int]]] = {reference: {}}
        prompts: dict[str, Sequence[int]] = {}
        expected: dict[str, list[int]] = {}
        for record in group:
            if record.method in own and not engine.sampling.greedy:
                continue
            item = request_key("", record.prompt_id, record.repeat, record.turn).removeprefix("|")
            asked = turns.request(record.method, record.prompt_id, record.repeat, record.turn).ids
            baseline = baselines.get((record.prompt_id, record.turn))
            if baseline and asked == turns.request(reference, record.prompt_id, baseline.repeat, record.turn).ids:
                prompts[item], expected[item] = asked, baseline.output_ids
                graded.setdefault(record.method, {})[item] = record.output_ids
        for label, tally in lossless.grade_all(engine, widest, prompts, expected, graded, elsewhere).items():
            lossy = label in other and not engine.sampling.greedy
            tallies[label].append({**tally, "verdict": "lossy"} if lossy else tally)
    return {label: merge(found) for label, found in tallies.items()}
