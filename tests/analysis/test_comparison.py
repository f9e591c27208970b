"""Comparison of runs derived from a real one: planted slow-downs, drift, other answers, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import runs
from support.asserting import known, refusal
from support.wording import wording

from specbench.analysis.comparison import compare, read_sides, regressions
from specbench.analysis.stats import paired_ratio
from specbench.common.errors import UsageError


def noisy(seed: int, slower: dict[str, float] | None = None, noise: float = 0.01) -> runs.Change:
    """Times measured anew: noise of 1 % a request, and rows that are slower by a factor."""
    generator = random.Random(seed)
    return runs.timed(lambda line: (slower or {}).get(line["method"], 1.0) * generator.lognormvariate(0, noise))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``made("name", change_of_requests, change_of_run)``: a run folder, made once."""
    out, known = tmp_path_factory.mktemp("runs"), dict[str, Path]()

    def make(name: str, request: runs.Change | None = None, run: runs.Change | None = None, **more: Any) -> Path:
        if name not in known:
            known[name] = runs.derived(out / name, request, run, **more)
        return known[name]

    return make


def compared(*targets: object) -> dict[str, Any]:
    return compare(read_sides([str(target) for target in targets]))


def row(found: dict[str, Any], label: str, run: str = "B") -> dict[str, Any]:
    return next(row for row in found["rows"] if (row["run"], row["methods"][1]) == (run, label))


def test_a_slow_down_of_5_percent_is_found_and_only_a_proven_one_counts(made: Callable[..., Path]) -> None:
    first, again = made("first", noisy(1)), made("another", noisy(8))
    slower = made("slower", noisy(3, {"jetspec": 1.05}))
    same, other = compared(first, again), compared(first, slower)
    # By their values: one in twenty equal rows is outside its 95% interval.
    for unchanged in (row(same, "ar"), row(same, "jetspec"), row(other, "ar")):
        assert unchanged["speedup"]["value"] == pytest.approx(1, abs=0.01)
    planted = row(other, "jetspec")["speedup"]
    assert planted["verdict"] == "slower"
    assert planted["low"] < 1 / 1.05 < planted["high"] < 0.97
    assert planted["value"] == pytest.approx(1 / 1.05, abs=0.01)


def test_only_a_proven_regression_counts(made: Callable[..., Path]) -> None:
    first, slower = made("first", noisy(1)), made("slower", noisy(3, {"jetspec": 1.05}))
    found = compared(first, slower)
    assert [row["methods"] for row in regressions(found, 0.97)] == [["jetspec", "jetspec"]]
    assert regressions(found, 0.94) == []
    # An estimate of 0.95 with an interval that reaches over the threshold proves nothing.
    wide = compared(made("rough", noisy(4, noise=0.1)), made("rougher", noisy(5, {"jetspec": 1.05}, noise=0.1)))
    assert row(wide, "jetspec")["speedup"]["high"] > 0.97
    assert [r["methods"] for r in regressions(wide, 0.97)] == []


@pytest.mark.parametrize("over_ar", [False, True])
def test_equal_runs_seldom_fail_at_any_threshold_up_to_1(made: Callable[..., Path], over_ar: bool) -> None:
    # One-sided, 2.5 % of equal runs would fail at a threshold of 1; at 0.97 none of these does.
    pairs = [(made(f"equal {2 * n}", noisy(300 + n)), made(f"equal {2 * n + 1}", noisy(400 + n))) for n in range(6)]
    found = [compared(*pair) for pair in pairs]
    assert not any(regressions(each, 0.97, over_ar) for each in found)
    assert sum(bool(regressions(each, 1.0, over_ar)) for each in found) <= 1


def test_a_slow_machine_is_not_a_slow_method_over_ar(made: Callable[..., Path]) -> None:
    drift = made("drift", noisy(6, {"ar": 1.1, "jetspec": 1.1}))
    found = compared(made("first", noisy(1)), drift)
    assert row(found, "jetspec")["speedup"]["verdict"] == "slower"
    assert row(found, "jetspec")["over_ar"]["verdict"] == "no difference shown"
    assert row(found, "ar")["over_ar"] is None
    assert len(regressions(found, 0.97)) == 2
    assert regressions(found, 0.97, over_ar=True) == []


def test_figures_are_those_of_both_runs_and_multiply_up(made: Callable[..., Path]) -> None:
    first, slower = made("first", noisy(1)), made("slower", noisy(3, {"jetspec": 1.05}))
    found = row(compared(first, slower), "jetspec")
    shown = [read.read.summary.rows[1] for read in read_sides([str(first), str(slower)])]
    assert found["tokens_per_forward"] == [figures.tokens_per_forward for figures in shown]
    assert found["decode_tok_s"] == pytest.approx([figures.decode_tok_s for figures in shown])
    assert found["speedup"]["value"] == pytest.approx(
        found["tokens_per_forward"][1] / found["tokens_per_forward"][0] * found["step_ratio"]
    )
    assert (found["answers_differ"], found["requests"], found["length_changed"]) == (0, 40, 0)
    assert found["right"] == [{"passed": each.accuracy.passed, "scored": 40} for each in shown if each.accuracy]
    each = found["prompts"]
    assert len(each) == 40
    assert all(prompt["same_answer"] for prompt in each)
    assert each[0]["speedup"] == pytest.approx(each[0]["seconds_per_token"][0] / each[0]["seconds_per_token"][1])


def test_two_methods_of_one_run_are_what_their_speedups_say(made: Callable[..., Path]) -> None:
    first = made("first", noisy(1))
    found = compared(f"{first}:ar", f"{first}:jetspec")
    (only,) = found["rows"]
    (side, _) = read_sides([str(first), str(first)])
    speedup = known(side.read.summary.rows[1].speedup)
    assert [only["speedup"][name] for name in ("value", "low", "high")] == [speedup.value, speedup.low, speedup.high]
    assert only["over_ar"] is None  # both have the same AR
    assert found["differs"] == {"B": []}


def test_answers_that_differ_are_counted_and_their_verdicts_compared(made: Callable[..., Path]) -> None:
    def other_end(line: dict[str, Any]) -> None:
        if line["method"] == "jetspec" and line["prompt_id"].endswith(("1", "3")):
            line["output_ids"][-1] += 1

    found = row(compared(made("first", noisy(1)), made("other end", other_end)), "jetspec")
    changed = [each["prompt"] for each in found["prompts"] if not each["same_answer"]]
    assert found["answers_differ"] == len(changed) > 0
    assert all(prompt.endswith(("1", "3")) for prompt in changed)
    assert (found["accuracy_difference"]["gained"], found["accuracy_difference"]["lost"]) == (0, 0)


def test_shared_engines_are_compared_by_their_shares(made: Callable[..., Path]) -> None:
    def busy(by: float) -> runs.Change:
        return lambda line: line.update(decode_share_s=line["decode_s"] * by)

    def several(run: dict[str, Any]) -> None:
        run["concurrency"] = 2

    pair = [made(f"busy {by}", busy(by), several) for by in (0.5, 0.25)]
    assert row(compared(*pair), "jetspec")["speedup"]["value"] == pytest.approx(2)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda run: run["environment"].update(git_commit="f" * 40), "commit ffffffffffff"),
        (lambda run: run["environment"]["cpu"].update(model="Other CPU"), "processor Other CPU, not "),
        (lambda run: run["environment"]["device"].update(name="NVIDIA B200"), "device NVIDIA B200, not cpu"),
        (lambda run: run["model"].update(name="mine", fingerprint="0" * 64), "model mine, not smollm2-135m"),
        (lambda run: run["model"].update(dtype="bfloat16"), "dtype bfloat16, not float32"),
        (lambda run: run.update(attention="triton"), "attention triton, not"),
        (lambda run: run["methods"][1]["options"].update(budget=16), "jetspec budget=16, not 64"),
        (lambda run: run["methods"][1]["weights"].update(head="mine"), "jetspec drafts with other weights"),
    ],
)
def test_what_may_differ_is_said(made: Callable[..., Path], tmp_path: Path, change: runs.Change, expected: str) -> None:
    lines = compared(made("plain"), runs.derived(tmp_path / "other", None, change))["differs"]["B"]
    assert any(line.startswith(expected) for line in lines), lines


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda run: run["task"].update(version=9), "task version (9, not 2)"),
        (lambda run: run["task"].update(name="mbpp"), "task (mbpp, not gsm8k)"),
        (lambda run: run["task"]["options"].update(style="cot"), "style of the task (cot, not chat)"),
        (lambda run: run.update(max_new_tokens=64), "token budget (64, not 128)"),
        (lambda run: run["sampling"].update(temperature=0.7), "temperature (0.7, not 0.0)"),
        (lambda run: run.update(concurrency=4), "concurrency (4, not 1)"),
        (lambda run: run["task"].update(prompts_sha256="0" * 64), "different prompt texts"),
        (lambda run: run.update(simulated={"jetspec": {"mean": 3, "spread": 1}}), "simulated acceptance"),
    ],
)
def test_unlike_runs_are_refused_with_the_reason(
    made: Callable[..., Path], tmp_path: Path, change: runs.Change, why: str
) -> None:
    text = refusal(UsageError, compared, made("plain"), runs.derived(tmp_path / "other", None, change))
    assert why in text
    assert str(tmp_path / "other") in text


def test_other_prompts_are_refused(made: Callable[..., Path], tmp_path: Path) -> None:
    def renamed(line: dict[str, Any]) -> None:
        line["prompt_id"] += "x"
        line["request_id"] = f"{line['method']}|{line['prompt_id']}|0"

    other = runs.derived(tmp_path / "other", renamed)
    (other / "verdicts.jsonl").unlink()
    with pytest.raises(UsageError, check=wording):
        compared(made("plain"), other)


def test_a_seed_matters_only_where_something_is_sampled(made: Callable[..., Path], tmp_path: Path) -> None:
    def seed(run: dict[str, Any], temperature: float, number: int) -> None:
        run["sampling"].update(temperature=temperature, seed=number)

    def folder(name: str, temperature: float, number: int) -> Path:
        return runs.derived(tmp_path / name, None, lambda run: seed(run, temperature, number))

    assert compared(made("plain"), folder("greedy", 0.0, 5))
    with pytest.raises(UsageError, check=wording):
        compared(folder("one", 0.7, 1), folder("two", 0.7, 2))


def test_a_gate_that_could_never_fall_is_refused(made: Callable[..., Path], tmp_path: Path) -> None:
    first, again = made("first", noisy(1)), made("another", noisy(8))
    ar = compared(f"{first}:ar", f"{again}:ar")
    assert regressions(ar, 0.5) == []
    with pytest.raises(UsageError, check=wording):
        regressions(ar, 0.5, over_ar=True)
    few = compared(first, again)
    value = paired_ratio(([1.0], [9.0]), ([2.0], [9.0]), seed=0).value
    few["rows"][0]["speedup"].update(value=value, low=None, high=None)
    with pytest.raises(UsageError, check=wording):
        regressions(few, 0.97)
