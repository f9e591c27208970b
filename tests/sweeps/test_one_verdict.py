"""What a sweep's table, its pictures, its advice and a run's summary say of the same records is the same."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runs import record, worker_config

from specbench.analysis.noise import UNSURE
from specbench.analysis.read import ReadRun
from specbench.analysis.summary import RunContents, summarise
from specbench.report.charts.crossing import crossings
from specbench.report.charts.sweep_cells import drawn_cells
from specbench.report.tables.run_table import finding
from specbench.report.tables.sweep import found, sentences, sweep_advice
from specbench.results import BASELINE
from specbench.results.summary_schema import SweepFindings
from specbench.sweeps.measured import Measured
from specbench.sweeps.search import Search
from specbench.sweeps.table import cells

LABELS = [f"toy n={2**at}" for at in range(1, 5)]
HEAD = {"cells": {label: {"method": "toy", "values": {"n": int(label[6:])}} for label in LABELS}, "too_large": {}}
MACHINE: Any = {"name": "t", "environment": {"device": {"name": "a CPU"}}}


def read(speeds: list[float], prompts: int, noise: float, concurrency: int, seed: int) -> ReadRun:
    rng = random.Random(seed)
    names = [f"p{at:03d}" for at in range(prompts)]
    records = []
    for label, speed in zip([BASELINE, *LABELS], [1.0, *speeds], strict=True):
        for at, name in enumerate(names):
            long = 1 + at % 3  # of equal steps: other steps would be another machine's
            taken = long / speed * rng.lognormvariate(0, noise)
            segment = at // (4 * concurrency) if concurrency > 1 else at
            number, counts = 10 * segment + len(label), (1 + 10 * long, 10 * long)
            records.append(record(label, name, decode_s=taken, segment=number, tokens=counts[0], forwards=counts[1]))
    made = worker_config(LABELS, prompts).model_copy(update={"concurrency": concurrency})
    measured = Measured(shared=concurrency > 1)
    for each in records:
        measured.add(each)
    together = Search(LABELS, names, concurrency=concurrency).found(measured)
    findings = SweepFindings(best=together.best, within_noise=list(together.as_good) if together.conclusive else [])
    summary = summarise(RunContents(made, records)).model_copy(update={"sweep": findings})
    run = {**made.model_dump(mode="json"), "digest": "abc", **MACHINE}
    return ReadRun(run, made, records, {}, summary, [])


@settings(max_examples=25)
@given(
    speeds=st.lists(st.sampled_from([0.5, 0.9, 1.0, 1.02, 1.1, 1.5]), min_size=4, max_size=4),
    prompts=st.sampled_from([3, 6, 12, 30]),
    noise=st.sampled_from([0.01, 0.1, 0.5]),
    concurrency=st.sampled_from([1, 2]),
    seed=st.integers(0, 10**6),
)
def test_they_cannot_contradict_each_other(
    speeds: list[float], prompts: int, noise: float, concurrency: int, seed: int
) -> None:
    made = read(speeds, prompts, noise, concurrency, seed)
    table = cells({**HEAD, "tuning": [f"p{at:03d}" for at in range(prompts)]}, {concurrency: made})
    rows = {row["label"]: row for row in table.to_dict("records")}
    summary = {row.method: row for row in made.summary.rows}

    for label in LABELS:
        speedup = summary[label].speedup
        assert speedup is not None
        assert rows[label]["verdict"] == speedup.verdict
        assert rows[label]["speedup"] == pytest.approx(speedup.value)
        if speedup.low is not None:
            assert rows[label]["speedup_low"] == pytest.approx(speedup.low)
            assert speedup.among is not None
            assert rows[label]["chosen_low"] == pytest.approx(speedup.among.low)
    fastest, sweep = made.summary.fastest, made.summary.sweep
    if made.summary.unsure:
        assert fastest is None
        assert not sweep_advice(made.run, table, [(1, 0.01), (4, 0.02)], "toy")["faster"]
        assert not any(rows[label]["verdict"] in ("faster", "slower") for label in LABELS)
        return
    assert fastest is not None
    assert sweep is not None
    best = [label for label in LABELS if rows[label]["best"]]
    assert best == [fastest.method] == [sweep.best]

    drawn = drawn_cells(table)
    rings = set(drawn[drawn["within_noise"].astype(bool) & ~drawn["best"].astype(bool)]["label"])
    near = set(fastest.as_good) - {fastest.method} if fastest.conclusive else set()
    assert rings == near == set(sweep.within_noise) - {fastest.method}
    assert {label for label in LABELS if "within noise" in found(rows[label])} == near

    result, ran = " ".join(sentences(table)), finding(made.summary)
    verdict = rows[fastest.method]["verdict"]
    advised = sweep_advice(made.run, table, [(1, 0.01), (4, 0.02)], "toy")
    assert advised["faster"] == (verdict == "faster")
    assert (f"{fastest.method}, faster, speedup" in result) == (verdict == "faster")
    verdicts = {rows[label]["verdict"] for label in LABELS}
    assert (f"{UNSURE}faster than ar: " in ran) == (f"{UNSURE}faster" in verdicts)
    assert ("faster than ar: " in ran.replace(f"{UNSURE}faster", "")) == ("faster" in verdicts)
    assert ("too few prompts to distinguish configurations" in result) == (not fastest.conclusive)
    assert ("As good as the fastest" in ran) == (bool(near) and not made.summary.unsure)


def test_a_crossing_is_sure_by_the_same_verdicts() -> None:
    one, two = (read([speed, 1.0, 1.0, 1.0], 60, 0.01, count, 1) for count, speed in ((1, 1.5), (2, 0.5)))
    table = drawn_cells(cells({**HEAD, "tuning": [f"p{at:03d}" for at in range(60)]}, {1: one, 2: two}))
    mine = table[table["label"] == LABELS[0]]
    (crossing,) = crossings(mine)
    assert crossing.sure == (list(mine["verdict"]) == ["faster", "slower"]) is True
