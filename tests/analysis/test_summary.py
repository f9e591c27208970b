"""Figures from hand-made records, each worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import geometric_mean, median
from typing import Any

import pytest
from support import decoders

from specbench.analysis.stats import INTERVAL
from specbench.analysis.summary import RunContents, summarise
from specbench.results.request_schema import PHASES, GpuTrace, RequestRecord, request_key


def record(method: str, number: int, accepts: Sequence[int], step_s: float, **changes: Any) -> RequestRecord:
    """One request: prefill 2 s, then a forward of ``step_s`` for each entry of ``accepts``."""
    prompt, again = f"p{number}", changes.pop("repeat", 0)
    output_tokens, decode_s = 1 + sum(accepts), step_s * len(accepts)
    values: dict[str, Any] = {
        "request_id": request_key(method, prompt, again), "method": method, "prompt_id": prompt, "repeat": again,
        "prompt_tokens": 5, "output_ids": list(range(output_tokens)), "text": "", "finish_reason": "stop",
        "output_tokens": output_tokens, "overshoot_tokens": 0, "stop_tail_tokens": 0,
        "accepted_lengths": list(accepts), "tree_rows": 4 * len(accepts), "target_forwards": len(accepts),
        "draft_forwards": 0, "start_s": 0.0, "segment": 0,
        "ttft_s": 2.0, "decode_s": decode_s, "latency_s": 2.0 + decode_s,
        "prefill_share_s": 2.0, "decode_share_s": decode_s,
    }  # fmt: skip
    return RequestRecord.model_validate(values | changes)


def summary(records: Sequence[RequestRecord], prompts: int, **more: Any) -> dict[str, Any]:
    config = {name: more.pop(name) for name in ("repeats", "concurrency") if name in more}
    labels = list(dict.fromkeys(r.method for r in records))
    return summarise(RunContents(decoders.config(labels, prompts, **config), records, **more)).model_dump(mode="json")


def row(records: Sequence[RequestRecord], label: str, **more: Any) -> dict[str, Any]:
    rows = summary(records, more.pop("prompts", 8), **more)["rows"]
    return next(row for row in rows if row["method"] == label)


def both(prompts: int = 8, **changes: Any) -> list[RequestRecord]:
    """AR: 8 forwards of 1 s. The method: 3, 3, 2 tokens in 3 forwards of 1.5 s."""
    return [
        *(record("ar", n, [1] * 8, 1.0) for n in range(prompts)),
        *(record("mine", n, [3, 3, 2], 1.5, **changes) for n in range(prompts)),
    ]


def test_figures_are_ratios_of_sums() -> None:
    # Unlike lengths: a mean of ratios would give 3 and 1.5 the same weight.
    mine = [record("mine", 0, [3] * 10, 1.0), record("mine", 1, [1, 2], 4.0)]
    figures = {
        "tokens": 31 + 4, "tokens_per_forward": 33 / 12, "tokens_per_forward_with_prefill": 35 / 14,
        "decode_tok_s": 33 / 18, "e2e_tok_s": 35 / 22, "step_s": 18 / 12, "rows_per_step": 4, "target_forwards": 12,
        "prompts": 2, "requests": 2,
    }  # fmt: skip
    found = row(mine, "mine", prompts=2)
    assert {name: found[name] for name in figures} == pytest.approx(figures)


def test_counts_are_summed_and_ttft_is_a_median() -> None:
    mine = [
        record(
            "mine", n, [2], 1.0, ttft_s=t, overshoot_tokens=n, stop_tail_tokens=2 * n, draft_forwards=3,
            finish_reason=reason,
        )
        for n, (t, reason) in enumerate([(1.0, "stop"), (9.0, "length"), (2.0, "stop-string")])
    ]  # fmt: skip
    found = row(mine, "mine", prompts=3)
    assert (found["overshoot_tokens"], found["stop_tail_tokens"], found["draft_forwards"]) == (3, 6, 9)
    assert (found["truncated"], found["ttft_median_s"]) == (1, 2.0)
    records = [record("ar", n, [1], 1.0) for n in range(2)]
    records += [record("mine", 0, [1], 1.0), record("mine", 1, [1], 1.0, prompt_tokens=6)]
    assert row(records, "mine", prompts=2)["prompt_changed"] == 1
    mine = [
        record("mine", 0, [2], 1.0, measures={"often": 1.0, "seldom": 7.0}),
        record("mine", 1, [2] * 9, 1.0, measures={"often": 4.0}),
        record("mine", 2, [2], 1.0),
    ]
    rows = summary([record("ar", 0, [1], 1.0), *mine], 3)["rows"]
    assert [r["measures"] for r in rows] == [{}, {"often": 2.5, "seldom": 7}]


def test_the_wait_for_a_token_is_a_median_over_requests_and_the_wall_at_any_concurrency() -> None:
    # 4 tokens in 8 s, 2 in 1 s, 9 in 6 s; the last has no second token, so nothing to wait for.
    mine = [
        record("mine", n, [1] * count, seconds / count) for n, (count, seconds) in enumerate([(4, 8), (2, 1), (9, 6)])
    ]
    mine.append(record("mine", 3, [], 1.0))
    assert [one.tpot_s for one in mine] == [2.0, 0.5, pytest.approx(6 / 9), None]
    assert row(mine, "mine", prompts=4)["tpot_median_s"] == pytest.approx(6 / 9)
    shared = [one.model_copy(update={"decode_share_s": one.decode_s / 4}) for one in mine]
    found = row(shared, "mine", prompts=4, concurrency=4)
    assert found["tpot_median_s"] == pytest.approx(6 / 9)
    assert found["decode_tok_s"] == pytest.approx(4 * 15 / 15)
    assert row(mine[3:], "mine", prompts=1)["tpot_median_s"] is None


def test_speedup_over_ar_and_its_decomposition() -> None:
    found = row(both(), "mine")
    assert found["speedup"]["value"] == pytest.approx(8 / 4.5)
    assert found["e2e_speedup"]["value"] == pytest.approx(10 / 6.5)
    assert found["step_ratio"] == pytest.approx(1 / 1.5)
    assert found["speedup"]["value"] == pytest.approx(found["tokens_per_forward"] * found["step_ratio"])
    assert found["speedup"]["verdict"] == "faster"
    assert found["length_changed"] == 0
    speedup = row(both(), "ar")["speedup"]
    assert (speedup["value"], speedup["low"], speedup["high"]) == (1, 1, 1)
    assert speedup["verdict"] == "no difference shown"
    # The method stops after 4 of 8 tokens at AR's own pace: per token nothing was gained, and the row says so.
    records = [r for r in both() if r.method == "ar"] + [record("mine", n, [1] * 4, 1.0) for n in range(8)]
    found = row(records, "mine")
    assert found["speedup"]["value"] == pytest.approx(1)
    assert found["length_changed"] == 8


def test_only_requests_of_both_are_compared_and_the_summary_says_incomplete() -> None:
    slow = record("mine", 99, [1], 1000.0)  # without AR's request
    found = row([*both(), slow], "mine", prompts=9)
    assert found["speedup"]["value"] == pytest.approx(8 / 4.5)
    assert found["decode_tok_s"] == pytest.approx((8 * 8 + 1) / (8 * 4.5 + 1000))
    assert summary([*both(), slow], 9)["complete"] is False
    assert summary(both(), 8)["complete"] is True
    assert summary(both(), 8, repeats=2)["complete"] is False


def test_pairs_are_joined_by_prompt_and_repeats_of_one_are_one_cluster() -> None:
    records = [record("ar", n, [1] * (n + 1), 1.0) for n in range(8)]
    records += [record("mine", n, [1] * (n + 1), 0.5) for n in reversed(range(8))]
    found = row(records, "mine")
    assert found["length_changed"] == 0
    assert (found["speedup"]["low"], found["speedup"]["high"]) == (pytest.approx(2), pytest.approx(2))
    # Five prompts six times are not thirty prompts: no interval, no verdict.
    records = [
        record(m, n, [1] * 8, s, repeat=r) for m, s in (("ar", 1.0), ("mine", 0.5)) for n in range(5) for r in range(6)
    ]
    found = row(records, "mine", prompts=5, repeats=6)
    assert (found["prompts"], found["requests"]) == (5, 30)
    assert found["speedup"]["value"] == pytest.approx(2)
    assert (found["speedup"]["low"], found["speedup"]["verdict"]) == (None, "too few prompts")


def test_several_at_a_time_are_judged_by_their_share_of_the_engine() -> None:
    # On the wall each request also waits for the others; the shares are the throughput.
    records = [
        r.model_copy(update={"decode_s": 100.0, "ttft_s": 50.0, "latency_s": 150.0}) for r in both(prefill_share_s=1.0)
    ]
    found = row(records, "mine", concurrency=4)
    assert found["decode_tok_s"] == pytest.approx(8 / 4.5)
    assert found["e2e_tok_s"] == pytest.approx(9 / 5.5)
    assert found["step_s"] == pytest.approx(1.5)
    assert found["speedup"]["value"] == pytest.approx(8 / 4.5)
    assert found["e2e_speedup"]["value"] == pytest.approx(10 / 5.5)
    assert found["step_ratio"] == pytest.approx(1 / 1.5)
    assert row(records, "mine")["decode_tok_s"] == pytest.approx(8 / 100)  # one at a time it is the wall


def test_answers_of_one_token_and_methods_without_requests_break_nothing() -> None:
    records = [record(method, n, [], 1.0) for method in ("ar", "mine") for n in range(8)]
    found = row(records, "mine")
    for name in ("tokens_per_forward", "decode_tok_s", "step_s", "rows_per_step", "step_ratio", "speedup"):
        assert found[name] is None
    assert found["e2e_speedup"]["value"] == pytest.approx(1)
    rows = summarise(RunContents(decoders.config(["ar", "mine"], 2), [record("ar", 0, [1], 1.0)])).model_dump()["rows"]
    assert [r["method"] for r in rows] == ["ar", "mine"]
    assert [rows[1][name] for name in ("requests", "decode_tok_s", "speedup", "ttft_median_s")] == [0, None, None, None]


def test_right_answers_are_counted_and_compared_with_ars() -> None:
    records = both()
    verdicts = {r.request_id: r.prompt_id != "p0" for r in records if r.prompt_id != "p7"}
    accuracy = row(records, "mine", verdicts=verdicts)["accuracy"]
    assert (accuracy["passed"], accuracy["scored"]) == (6, 7)
    assert accuracy["value"] == pytest.approx(6 / 7)
    assert accuracy["low"] < 6 / 7 < accuracy["high"]
    assert row(records, "mine")["accuracy"] is None
    assert row(records, "mine", verdicts={})["accuracy"] is None
    # AR has p0 to p3 right, the method p2 to p5; p6 of the method and p7 of AR are not scored.
    right = {"ar": range(0, 4), "mine": range(2, 6)}
    skipped = {request_key("mine", "p6", 0), request_key("ar", "p7", 0)}
    verdicts = {r.request_id: int(r.prompt_id[1:]) in right[r.method] for r in records if r.request_id not in skipped}
    found = row(records, "mine", verdicts=verdicts)["accuracy_difference"]
    assert (found["gained"], found["lost"], found["value"], found["p_value"]) == (2, 2, 0, 1)
    assert found["low"] < 0 < found["high"]
    assert found["verdict"] == "no difference shown"
    assert row(records, "ar", verdicts=verdicts)["accuracy_difference"] is None
    assert row(records, "mine")["accuracy_difference"] is None
    for more, less, sign in (("mine", "ar", 1), ("ar", "mine", -1)):
        passed = {more: {0, 1, 2, 3, 4}, less: {0, 5}}
        verdicts = {r.request_id: int(r.prompt_id[1:]) in passed[r.method] for r in records}
        found = row(records, "mine", verdicts=verdicts)["accuracy_difference"]
        assert (found["gained"], found["lost"]) == ((4, 1) if sign > 0 else (1, 4))
        assert found["value"] == pytest.approx(sign * 3 / len({r.prompt_id for r in records}))
        assert sign * (found["low"] + found["high"]) > 0


def test_a_speedup_says_how_it_is_spread_and_what_its_prompts_tell() -> None:
    records = [record("ar", n, [1] * 8, 1.0) for n in range(8)]
    records += [record("mine", n, [1] * 8, 0.9 + 0.05 * n) for n in range(8)]
    found = row(records, "mine")["speedup"]
    ratios = [1 / (0.9 + 0.05 * n) for n in range(8)]
    assert found["per_prompt"] == {
        "median": pytest.approx(median(ratios)), "geometric_mean": pytest.approx(geometric_mean(ratios)),
        "prompts": 8, "faster": 2, "p_value": pytest.approx(58 / 128),  # 2 faster, 1 as fast, 5 slower
    }  # fmt: skip
    assert found["verdict"] == "no difference shown"
    assert 0.05 < found["detectable"] < 0.5
    seen = sum(0.9 + 0.05 * n for n in range(8)) / 8 - 1
    assert found["to_tell"]["difference"] == pytest.approx(seen)  # a tenth slower or faster is the same difference
    assert 10 < found["to_tell"]["prompts"] < 100
    assert summary(records, 8)["interval"] == INTERVAL


def test_a_row_that_drafted_what_an_earlier_one_did_says_so() -> None:
    records = [*both(), *(record("other", n, [3, 3, 2], 2.0) for n in range(8))]
    rows = summary(records, 8)["rows"]
    assert [found["drafted_as"] for found in rows] == [None, None, "mine"]
    records[-1] = record("other", 7, [3, 2, 3], 2.0)
    assert [found["drafted_as"] for found in summary(records, 8)["rows"]] == [None, None, None]
    plain = [record(label, n, [1] * 4, 1.0) for label in ("ar", "one", "two") for n in range(3)]
    assert [found["drafted_as"] for found in summary(plain, 3)["rows"]] == [None] * 3, "nothing was accepted"


def test_the_same_method_once_more_is_held_against_its_first_row() -> None:
    records = [*both(), *(record("mine#2", n, [3, 3, 2], 1.5 * (1 + 0.001 * n)) for n in range(8))]
    config = decoders.config(["ar", "mine", "mine#2"], 8)
    methods = [spec.model_copy(update={"name": spec.label.partition("#")[0]}) for spec in config.methods]
    rows = summarise(RunContents(config.model_copy(update={"methods": methods}), records)).model_dump()["rows"]
    assert [r["again"] and r["again"]["of"] for r in rows] == [None, None, "mine"]
    assert rows[2]["again"]["speedup"]["value"] == pytest.approx(1 / 1.0035)
    assert rows[2]["speedup"]["value"] == pytest.approx(8 / 4.5 / 1.0035)
    # With another option it is another thing.
    methods[2] = methods[2].model_copy(update={"options": {"n": 4}})
    assert summarise(RunContents(config.model_copy(update={"methods": methods}), records)).rows[2].again is None


def test_losslessness_is_passed_on_with_the_rates_of_prompts() -> None:
    tied = [{"prompt": f"p1|{repeat}", "at": 3, "gap": 0.0, "grade": "numeric-tie"} for repeat in (0, 1)]
    graded = {"verdict": "numeric-tie", "exact": 14, "numeric_tie": 2, "lossy": 0, "divergences": tied}
    records = [*both(), *both(repeat=1)[8:]]
    rows = summary(records, 8, repeats=2, lossless={"mine": graded})["rows"]
    assert rows[0]["lossless"] is None
    found = rows[1]["lossless"]
    assert {name: found[name] for name in graded} == graded
    # Both repeats of one prompt parted: that is one prompt of eight.
    assert {grade: share["count"] for grade, share in found["rates"].items()} == {
        "exact": 7, "numeric-tie": 1, "lossy": 0,
    }  # fmt: skip
    assert {share["of"] for share in found["rates"].values()} == {8}


def grouped() -> list[RequestRecord]:
    """Two groups. AR stops by itself after 1 + 8 tokens in 10 s; the method gives 1 + 8 in 2 + 4.5 s."""
    records = []
    for number, category in enumerate(["talk/short", "talk/long", "code", ""]):
        records += [
            record("ar", number, [1] * 8, 1.0, category=category),
            record("mine", number, [3, 3, 2], 1.5, category=category),
        ]
    return records


def test_groups_are_the_first_part_of_a_category_and_have_a_mat() -> None:
    groups = row(grouped(), "mine", prompts=4)["groups"]
    assert {name: figures["prompts"] for name, figures in groups.items()} == {"talk": 2, "code": 1, "overall": 4}
    assert groups["talk"]["tokens_per_forward"] == pytest.approx(8 / 3)
    assert groups["talk"]["speedup"]["value"] == pytest.approx(8 / 4.5)
    one = [r for r in grouped() if r.category.startswith("talk")]
    assert list(row(one, "mine", prompts=2)["groups"]) == ["talk"]
    assert row(both(), "mine")["groups"] == {}
    groups = row(grouped(), "mine", prompts=4)["groups"]
    assert groups["talk"]["specbench_mat"] == pytest.approx((1 + 3 + 3 + 2) / 4)
    assert row(grouped(), "ar", prompts=4)["groups"]["talk"]["specbench_mat"] == 1
    # Pooled over forwards: a long answer weighs more than a short one.
    unlike = [record("mine", 0, [4] * 9, 1.0, category="x"), record("mine", 1, [1], 1.0, category="x")]
    assert row(unlike, "mine", prompts=2)["groups"]["x"]["specbench_mat"] == pytest.approx((1 + 36 + 1 + 1) / 12)
    mine = [record("mine", 0, [3, 3], 1.0, repeat=again) for again in range(3)]
    found = row(mine, "mine", prompts=1, repeats=3)
    assert found["tokens_per_forward_with_prefill"] == pytest.approx(21 / 9)


def test_spec_benchs_speedup_is_a_ratio_of_mean_speeds_where_only_ar_goes_without_its_stop_token() -> None:
    # Prompt 0: AR 9 tokens, 8 without the stop, in 10 s; the method 9 in 6.5 s. Prompt 1 is cut: 5 in 6 s and in 4 s.
    records = [
        record("ar", 0, [1] * 8, 1.0, category="x"),
        record("ar", 1, [1] * 4, 1.0, category="x", finish_reason="length"),
        record("mine", 0, [3, 3, 2], 1.5, category="x"),
        record("mine", 1, [2, 2], 1.0, category="x", finish_reason="length"),
    ]
    figures = row(records, "mine", prompts=2)["groups"]["x"]
    assert figures["specbench_speedup"] == pytest.approx((9 / 6.5 + 5 / 4) / (8 / 10 + 5 / 6))
    assert figures["e2e_speedup"]["value"] != pytest.approx(figures["specbench_speedup"])


def test_the_turns_of_a_question_are_one_speed_and_repeats_one_ratio_each() -> None:
    def turn(method: str, number: int, accepts: Sequence[int], repeat: int = 0) -> RequestRecord:
        key = request_key(method, "p0", repeat, number)
        changes = {"turn": number, "request_id": key, "category": "x", "finish_reason": "length", "repeat": repeat}
        return record(method, 0, accepts, 1.0, **changes)

    turns = [turn("ar", 1, [1] * 3), turn("ar", 2, [1]), turn("mine", 1, [3]), turn("mine", 2, [1])]
    assert row(turns, "mine", prompts=1)["groups"]["x"]["specbench_speedup"] == pytest.approx((6 / 6) / (6 / 8))
    again = [*turns, turn("ar", 1, [1] * 3, 1), turn("mine", 1, [1] * 3, 1)]
    figures = row(again, "mine", prompts=1, repeats=2)["groups"]["x"]
    assert figures["specbench_speedup"] == pytest.approx((8 / 6 + 1) / 2)


def traced(number: int, *steps: Sequence[float]) -> RequestRecord:
    """A request whose steps spent this much in each phase."""
    split = {phase: list(spent) for phase, spent in zip(PHASES, zip(*steps, strict=True), strict=True)}
    return record("mine", number, [2] * len(steps), 1.0, phases_s=split)


def test_phases_are_medians_over_all_steps_and_host_is_a_median_of_sums() -> None:
    # Two requests of unlike lengths; a step's numbers are those of PHASES: draft, build, forward, accept, commit,
    # observe. The medians of the columns add up to 24; the steps without their forward to 7, 11 and 30.
    mine = [traced(0, (1, 2, 10, 1, 2, 1), (9, 0, 12, 2, 0, 0)), traced(1, (0, 3, 50, 7, 10, 10))]
    found = row([record("ar", 0, [1], 1.0), *mine], "mine", prompts=2)["phases"]
    assert found == {
        "draft_s": 1, "build_s": 2, "forward_s": 12, "accept_s": 2, "commit_s": 2, "observe_s": 1, "host_s": 11,
    }  # fmt: skip


def test_without_a_trace_or_a_step_there_are_no_phases() -> None:
    assert row(both(), "mine")["phases"] is None
    assert row([*both(), record("ended in its prefill", 0, [], 1.0)], "ended in its prefill")["phases"] is None
    mine = [traced(0, (1, 2, 3, 4, 5, 6)), record("mine", 1, [], 1.0)]
    found = row(mine, "mine", prompts=2)["phases"]
    assert (found["draft_s"], found["observe_s"], found["host_s"]) == (1, 6, 18)


def looked(number: int, watts: float | None, joules: float | None, **changes: Any) -> RequestRecord:
    """A request of 9 tokens with GPU data."""
    trace: dict[str, Any] = {
        "sm_clock_mhz": 1980 - 30 * number, "memory_clock_mhz": 3201, "temperature_c": 50 + number,
        "energy_j": joules, "power_w": watts, "throttled": [],
    }  # fmt: skip
    return record("mine", number, [4, 4], 1.0, gpu=GpuTrace.model_validate(trace | changes))


def test_the_gpu_of_a_method_and_one_that_tells_nothing() -> None:
    mine = [
        looked(0, 400.0, 90.0, throttled=["power cap"]),
        looked(1, 600.0, 45.0, temperature_c=None, throttled=["thermal slowdown", "power cap"]),
        looked(2, 410.0, None),  # no energy: its tokens do not count for the energy of one
        record("mine", 3, [4, 4], 1.0),
    ]
    rows = summary([record("ar", 0, [1], 1.0), *mine], 4)["rows"]
    assert rows[0]["gpu"] is None
    assert rows[1]["gpu"] == {
        "sm_clock_mhz": 1950, "power_w": 410, "temperature_c": 52, "energy_per_token_j": pytest.approx(135 / 18),
        "throttled": 2, "throttle_reasons": ["power cap", "thermal slowdown"],
    }  # fmt: skip
    nothing = {"sm_clock_mhz": None, "temperature_c": None, "throttled": None}
    found = row([looked(0, None, None, **nothing)], "mine", prompts=1)["gpu"]
    assert found == {
        "sm_clock_mhz": None, "power_w": None, "temperature_c": None, "energy_per_token_j": None,
        "throttled": 0, "throttle_reasons": [],
    }  # fmt: skip
    more = [
        looked(7, 400.0, None),
        traced(8, (1, 2, 3, 4, 5, 6)),
        record("mine", 9, [2], 1.0, measures={"figure": 0.5}),
    ]
    json.dumps(summary([*both(), *more], 8, verdicts={}), allow_nan=False)
