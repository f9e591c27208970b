"""Each way in which a run may mislead: found where it is planted, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.runs import record, run_config

from specbench.analysis import check_run
from specbench.analysis.summary import RunContents, summarise
from specbench.decoding import SEEN
from specbench.results import (
    Disturbed,
    MethodSpec,
    RequestRecord,
    RunConfig,
    RunSummary,
    SimulatedAcceptance,
    TextFigures,
)

PROMPTS = 24


def clean(concurrency: int = 1) -> tuple[RunConfig, RunSummary]:
    def one(label: str, at: int) -> RequestRecord:
        forwards, seconds = (10, 1.0) if label == "ar" else (5, 0.6)
        start = (at // 4) * seconds if concurrency > 1 else 0.0
        found = record(label, f"p/{at}", tokens=11, forwards=forwards, decode_s=seconds, start_s=start)
        return found.model_copy(update={"finish_reason": "stop"})

    config = run_config(["jf"], PROMPTS, concurrency=concurrency)
    records = [one(label, at) for at in range(PROMPTS) for label in ("ar", "jf")]
    summary = summarise(RunContents(config, records)).model_copy(update={"disturbed": Disturbed()})
    return config, with_rows(summary, ar={"bandwidth_share": 0.9})


def with_rows(summary: RunSummary, **changes: dict[str, Any]) -> RunSummary:
    rows = [row.model_copy(update=changes.get(row.method, {})) for row in summary.rows]
    return summary.model_copy(update={"rows": rows})


def states(config: RunConfig, summary: RunSummary, **run: Any) -> dict[str, str]:
    return {each.name: each.state for each in check_run(run, config, summary) if each.state != "fine"}


def test_a_clean_run_has_nothing_to_say() -> None:
    assert states(*clean()) == {}
    assert states(*clean(concurrency=4)) == {}


Change = Callable[[RunConfig, RunSummary], tuple[RunConfig, RunSummary]]


def row(**changes: Any) -> Change:
    return lambda config, summary: (config, with_rows(summary, jf=changes))


def whole(**changes: Any) -> Change:
    return lambda config, summary: (config, summary.model_copy(update=changes))


def method(**changes: Any) -> Change:
    def changed(config: RunConfig, summary: RunSummary) -> tuple[RunConfig, RunSummary]:
        specs: list[MethodSpec] = [
            spec.model_copy(update=changes) if spec.label == "jf" else spec for spec in config.methods
        ]
        return config.model_copy(update={"methods": specs}), summary

    return changed


@pytest.mark.parametrize(
    ("change", "name", "state"),
    [
        (whole(complete=False), "complete", "misleads"),
        (row(fault="it broke"), "complete", "misleads"),
        (row(simulated=SimulatedAcceptance(mean=3, spread=1)), "simulated acceptance", "misleads"),
        (whole(disturbed=Disturbed(reasons=["other processes"])), "disturbed machine", "misleads"),
        (whole(disturbed=None), "disturbed machine", "unknown"),
        (row(text=TextFigures(looping=2)), "looping answers", "misleads"),
        (row(truncated=20), "cut answers", "misleads"),
        (row(measures={SEEN: 0.4}), "prompts that a drafter has seen", "misleads"),
        (method(weights={"head": "a"}), "prompts that a drafter has seen", "unknown"),
        (method(stateful=True), "warm caches across prompts", "misleads"),
        (lambda c, s: (c, with_rows(s, ar={"bandwidth_share": 0.3})), "weak baseline", "misleads"),
        (lambda c, s: (c, with_rows(s, ar={"bandwidth_share": None})), "weak baseline", "unknown"),
        (lambda c, s: (c.model_copy(update={"trace": True}), s), "traced steps", "misleads"),
    ],
)
def test_a_planted_fault_is_the_only_one_found(change: Change, name: str, state: str) -> None:
    assert states(*change(*clean())) == {name: state}


def test_few_prompts_and_wide_intervals_mislead() -> None:
    config, summary = clean()
    few = [each.model_copy(update={"prompts": 8}) for each in summary.rows]
    assert states(config, summary.model_copy(update={"rows": few})) == {"few prompts": "misleads"}
    speedup = summary.rows[1].speedup
    assert speedup is not None
    wide = speedup.model_copy(update={"low": 0.5, "high": 3.0})
    assert states(config, with_rows(summary, jf={"speedup": wide})) == {"few prompts": "misleads"}


def test_empty_slots_are_counted() -> None:
    config, summary = clean(concurrency=4)
    assert [each.sequences for each in summary.rows] == [pytest.approx(4 * 1.1 / (1 + 0.1 / 6), rel=0.1)] * 2
    asked = config.model_copy(update={"concurrency": 8})
    assert states(asked, summary)["concurrency reached"] == "misleads"


def test_uncommitted_code_is_named() -> None:
    assert states(*clean(), environment={"git_dirty": True}) == {"data": "unknown"}
