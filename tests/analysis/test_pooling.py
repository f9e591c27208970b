"""Runs on several tasks as one."""

from __future__ import annotations

import pytest
from support.asserting import known
from support.runs import record, worker_config

from specbench.analysis.pooling import Cost, Costs, poolable, pooled
from specbench.results.request_schema import RequestRecord


def costs(*records: RequestRecord) -> Costs:
    found: dict[str, dict[str, Cost]] = {}
    for one in records:
        mine = found.setdefault(one.method, {})
        mine[one.prompt_id] = mine.get(one.prompt_id, Cost()).with_(one)
    return found


def test_a_prompt_counts_by_its_seconds_and_equal_names_of_two_tasks_are_two_prompts() -> None:
    one = costs(
        record("ar", "p", tokens=11, decode_s=10.0), record("m", "p", tokens=11, forwards=5, decode_s=5.0),
    )  # fmt: skip
    two = costs(
        record("ar", "p", tokens=31, forwards=30, decode_s=30.0),
        record("m", "p", tokens=31, forwards=30, decode_s=30.0),
        record("ar", "q", tokens=11, decode_s=10.0), record("m", "q", tokens=11, decode_s=10.0),
    )  # fmt: skip
    ar, mine = pooled([one, two])
    assert (ar.method, ar.prompts, ar.speedup) == ("ar", 3, None)
    assert mine.tokens_per_forward == pytest.approx((10 + 30 + 10) / (5 + 30 + 10))
    assert mine.decode_tok_s == pytest.approx(50 / 45)
    speedup = known(mine.speedup)
    assert speedup.value == pytest.approx(50 / 45)
    assert (speedup.verdict, known(speedup.per_prompt).prompts) == ("too few prompts", 3)
    assert known(mine.e2e_speedup).value == pytest.approx((50 + 0.3) / (45 + 0.3))


def test_pooled_rows_are_judged_together() -> None:
    runs = [
        costs(*(
            record(label, f"p{at}", tokens=11 + at, decode_s=cost * (1 + 0.05 * ((at * 7 + number) % 3)))
            for label, cost in (("ar", 2.0), ("fast", 1.0), ("slow", 3.0))
            for at in range(4)
        ))
        for number in range(2)
    ]  # fmt: skip
    _, fast, slow = pooled(runs)
    assert [known(row.speedup).verdict for row in (fast, slow)] == ["faster", "slower"]
    assert known(known(fast.speedup).among).rows == 2
    assert known(fast.speedup).interval is not None, "eight prompts, four of each task"


def test_only_runs_that_differ_in_their_tasks_alone_are_pooled() -> None:
    one = worker_config(["toy n=2"], 3)
    other = one.model_copy(update={"task": one.task.model_copy(update={"name": "another"})})
    assert poolable(one, other)
    assert poolable(one, other.model_copy(update={"identity": {**one.identity, "git_commit": "another"}}))
    assert not poolable(one, one), "one task twice is no second task"
    assert not poolable(one, other.model_copy(update={"max_new_tokens": 7}))
    assert not poolable(one, other.model_copy(update={"identity": {"place": "elsewhere"}}))
    shared = {"concurrency": 2}
    assert not poolable(one.model_copy(update=shared), other.model_copy(update=shared))
