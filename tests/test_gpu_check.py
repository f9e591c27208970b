"""The GPU check, rehearsed without a GPU: its parts run, and what they find is kept and judged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_check import shapes
from benchmarks.gpu_check.records import Check, Figure
from specbench.hardware import environment

SIZE = shapes.Size(context=24, steps=3, concurrency=(1, 2), rows=(1, 4))
TINY = "config:tiny"


@pytest.fixture
def check(tmp_path: Path) -> Check:
    return Check(tmp_path, environment.capture("cpu").model_dump(mode="json"), budget_s=60)


def _silent(text: str) -> None: ...


def test_an_error_ends_its_part_and_keeps_the_figures_before_it(check: Check) -> None:
    def part() -> Iterator[Figure]:
        yield Figure("first", 2.0, "ms")
        raise RuntimeError("the device is on fire\nand more")

    said: list[str] = []
    check.run("fire", part, said.append)
    check.run("after", lambda: [Figure("second", 1.0, "share", ">= 2")], said.append)
    kept = json.loads((check.out / "gpu-check.json").read_text())
    assert [one["name"] for part in kept["parts"] for one in part["figures"]] == ["first", "second"]
    assert kept["parts"][0]["error"] == "RuntimeError: the device is on fire"
    assert kept["passed"] is False
    table = (check.out / "gpu-check.md").read_text()
    assert "| second | 1 | >= 2 | **missed** |" in table
    assert "on fire" in table


def test_a_missed_speed_is_no_failure_and_a_wrong_answer_is_one(check: Check) -> None:
    check.run("speed", lambda: [Figure("slow", 0.1, "share", ">= 0.8")], _silent)
    assert check.passed
    check.run("right", lambda: [Figure("answers that differ", 1, "failures", "== 0")], _silent)
    assert not check.passed


def test_no_part_is_begun_after_the_budget(check: Check) -> None:
    check.budget_s = -1

    def never() -> Iterator[Figure]:
        pytest.fail("begun")
        yield

    check.run("late", never, _silent)
    assert check.parts[0]["error"] == "not begun: the -1 s are over"


@pytest.mark.parametrize(
    ("part", "names"),
    [
        (
            lambda: shapes.baseline(TINY, 1e10, SIZE, "float32", compile=False),
            ["AR step", "over one row", "over transformers generate"],
        ),
        (
            lambda: shapes.drafting(TINY, SIZE, "float32", [("jf", ["jf.n=8"]), ("jetspec", ["jetspec.head=random"])]),
            ["jf jf.n=8, host share of a step", "jetspec jetspec.head=random, step"],
        ),
        (
            lambda: shapes.concurrency(TINY, SIZE, "float32", ["jf.n=8"]),
            ["ar at concurrency 1", "over AR, concurrency 2"],
        ),
    ],
    ids=["baseline", "drafting", "concurrency"],
)
def test_each_part_of_a_large_model_runs(part: Any, names: list[str]) -> None:
    found = list(part())
    assert all(figure.value is not None and figure.value >= 0 for figure in found)
    for name in names:
        assert any(name in figure.name for figure in found), name
