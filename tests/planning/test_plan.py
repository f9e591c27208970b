"""What the user may write for methods, tasks and their options, and the one line they get when it is not that."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.asserting import refusal

from specbench.common.errors import UsageError
from specbench.common.options import parse_flags
from specbench.engine.sampler import Sampling
from specbench.planning.methods import plan_methods, runnable
from specbench.planning.plan import Plan
from specbench.planning.resolving import Resolved
from specbench.planning.tasks import plan_tasks


def labels(*names: str) -> list[str]:
    return [method.label for method in plan_methods(names, [])]


@pytest.mark.parametrize("names", [["jacobi"], ["jacobi", "ar"], ["ar", "jacobi"]])
def test_ar_is_always_there_and_first(names: list[str]) -> None:
    assert labels(*names) == ["ar", "jacobi"]


def test_a_method_named_again_is_another_row() -> None:
    assert labels("jacobi", "jacobi", "ar", "jacobi") == ["ar", "jacobi", "jacobi#2", "jacobi#3"]
    assert labels("ar", "ar") == ["ar", "ar#2"]  # the A/A run
    assert labels("ar") == ["ar"]


def test_settings_go_to_the_label_they_name_which_may_be_left_out() -> None:
    ar, first, second = plan_methods(["jacobi", "jacobi"], ["jacobi.n=4", "jacobi#2.n=8", "jacobi#2.window=sliding"])
    assert (ar.name, first.name, second.name) == ("ar", "jacobi", "jacobi")
    assert (first.options.block_size, second.options.block_size) == (4, 8)  # type: ignore[attr-defined]
    assert (first.options.window, second.options.window) == ("block", "sliding")  # type: ignore[attr-defined]
    assert (ar.max_rows, first.max_rows, second.max_rows) == (1, 4, 8)
    assert plan_methods(["jacobi"], ["n=4"])[1].max_rows == 4


@pytest.mark.parametrize(
    ("names", "settings", "parts"),
    [
        (["jacobbi"], [], ["unknown method 'jacobbi'", "did you mean jacobi"]),
        (["jacobi"], ["jacobi.blocksize=4"], ["option 'blocksize' of jacobi", "block_size"]),
        (["jacobi"], ["jacobi.n"], ["jacobi.n", "METHOD.OPTION=VALUE"]),
        (["jacobi"], ["jacobi.n="], ["METHOD.OPTION=VALUE"]),
        (["jacobi"], ["jacobi.=4"], ["METHOD.OPTION=VALUE"]),
        (["jacobi"], ["jacobi#2.n=4"], ["jacobi#2", "--set", "did you mean jacobi"]),
        (["ar"], ["jacobi.n=4"], ["jacobi", "--set", "--method"]),
        (["ar"], ["n=4"], ["--set n=4", "ar.n=4"]),
        (["jacobi", "jacobi"], ["n=4"], ["--set n=4", "jacobi.n=4"]),
        (["jacobi"], ["jacobi.n=513"], ["--set jacobi.n=513", "512"]),
        (["ar"], ["ar.n=4"], ["option 'n' of ar"]),
        (["jacobi"], ["jacobi.n=4", "jacobi.block_size=8"], ["block_size", "twice"]),
        (["jacobi"], ["jacobi.n=4", "jacobi.n=8"], ["'n' of jacobi", "twice"]),
        (["jacobi"], ["n=4", "jacobi.n=8"], ["'n' of jacobi", "twice"]),
    ],
)
def test_a_wrong_method_or_setting_is_one_line(names: list[str], settings: list[str], parts: list[str]) -> None:
    text = refusal(UsageError, plan_methods, names, settings)
    assert all(part in text for part in parts), text


def options(name: str, *settings: str) -> dict[str, Any]:
    return plan_methods([name], settings)[1].options.model_dump()


def test_a_preset_stands_for_its_options_and_is_recorded_as_them() -> None:
    found = options("lookahead", "lookahead.preset=15/5/15")
    assert found == options("lookahead", "W=15", "N=5", "G=15")
    assert found != options("lookahead")
    (_, method) = plan_methods(["cllm"], ["preset=sharegpt"])
    assert method.options.model_dump()["block_size"] == 32
    assert "preset" not in method.options.model_dump()
    assert set(method.measures) == {"fast_forwarded", "stationary"}
    assert options("jf", "preset=vanilla") == options("jf", "jf.multiblock=false", "jf.recycling=false")
    _, first, second = plan_methods(["jf", "jf"], ["jf#2.preset=released", "jf#2.n=8"])
    assert (first.options.variant, second.options.variant) == ("paper", "released")  # type: ignore[attr-defined]
    assert (first.options.block_size, second.options.block_size) == (64, 8)  # type: ignore[attr-defined]


@pytest.mark.parametrize("window", ["W", "w", "window_size", "window-size"])
@pytest.mark.parametrize("first", [True, False], ids=["preset first", "preset last"])
def test_what_is_set_with_a_preset_wins_by_whatever_name_and_order(window: str, first: bool) -> None:
    settings = ["lookahead.preset=10/5/10", f"lookahead.{window}=3"]
    found = options("lookahead", *(settings if first else reversed(settings)))
    assert (found["window_size"], found["ngram_size"], found["guess_set_size"]) == (3, 5, 10)


def test_a_method_brings_how_many_best_tokens_it_wants_and_whether_it_runs_as_it_comes() -> None:
    assert [method.top_k for method in plan_methods(["msn", "msn"], ["msn#2.tree=chain"])] == [0, 10, 0]
    assert {"ar", "jacobi"} <= set(runnable())
    assert "sps" not in runnable()


@pytest.mark.parametrize(
    ("names", "settings", "parts"),
    [
        (["humanevl"], [], ["unknown task 'humanevl'", "did you mean humaneval"]),
        (["humaneval"], ["humaneval.stile=chat"], ["option 'stile' of humaneval", "style"]),
        (["humaneval"], ["humaneval.style=prose"], ["--task-set humaneval.style=prose"]),
        (["humaneval"], ["style=chat"], ["TASK.OPTION=VALUE"]),
        (["humaneval"], ["gsm9k.style=chat"], ["gsm9k", "--task-set", "--task"]),
        (["humaneval"], ["humaneval.style=chat", "humaneval.style=auto"], ["'style' of humaneval", "twice"]),
    ],
)
def test_a_wrong_task_or_setting_is_one_line(names: list[str], settings: list[str], parts: list[str]) -> None:
    text = refusal(UsageError, plan_tasks, names, settings)
    assert all(part in text for part in parts), text


def test_the_largest_tree_of_a_plan_is_that_of_its_widest_method() -> None:
    methods = plan_methods(["jacobi", "jacobi"], ["jacobi.n=4", "jacobi#2.n=32"])
    plan = Resolved(Plan(), methods, ())
    assert plan.max_rows == 32
    assert [(spec.label, spec.name, spec.lossless) for spec in plan.specs()] == [
        ("ar", "ar", True), ("jacobi", "jacobi", True), ("jacobi#2", "jacobi", True),
    ]  # fmt: skip
    assert plan.specs()[2].options["block_size"] == 32
    (task,) = plan_tasks(["humaneval"], ["humaneval.style=completion"])
    assert (task.card.name, task.options.style) == ("humaneval", "completion")
    assert plan_tasks(["humaneval"], [])[0].options.style == "auto"


@pytest.mark.parametrize(
    ("value", "right"),
    [
        *(({"temperature": t}, True) for t in (0, 2.5, 1e-6)),
        *(({"temperature": t}, False) for t in (-0.1, math.inf, 1e-46, 1e39)),
        ({"temperature": math.nan}, False),
        *(({"top_k": k}, ok) for k, ok in ((0, True), (5, True), (-1, False))),
        *(({"top_p": p}, ok) for p, ok in ((1, True), (0.01, True), (0, False), (1.01, False), (math.nan, False))),
        *(({"min_p": p}, ok) for p, ok in ((0.1, True), (1, True), (-0.1, False), (1.1, False), (math.nan, False))),
        *(
            ({"repetition_penalty": r}, ok)
            for r, ok in ((1.2, True), (0.01, True), (1e-300, False), (0, False), (math.inf, False))
        ),
        *(({"seed": s}, ok) for s, ok in ((0, True), ((1 << 63) - 1, True), (1 << 63, False), (-1, False))),
    ],
)
def test_sampling_is_refused_by_the_plan_exactly_where_the_engine_would(value: dict[str, Any], right: bool) -> None:
    # Checked in two places, because a plan is checked before torch is imported.
    values = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0} | value
    if right:
        assert parse_flags(Plan, values).sampling.model_dump() == values
        Sampling(**values)
        return
    (name,) = value
    with pytest.raises(UsageError, match=name.replace("_", "-")):
        parse_flags(Plan, values)
    with pytest.raises(ValueError, match=name.replace("_", "-")):
        Sampling(**values)
