"""The headline table: every row over AR, verdicts only with intervals, lossy rows last and never without quality."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.runs import EXACT, LOSSY, answers, folder, run_config
from support.wording import wording

from specbench.report.document import DASH, Row
from specbench.report.gathering import Run, read_whole_run
from specbench.report.page.run_section import run_section
from specbench.report.tables.run_table import candidates, headline


def run(tmp_path: Path, *, prompts: int = 8, labels: tuple[str, ...] = ("fast", "other"), **more: Any) -> Run:
    records = [*answers("ar", prompts, decode_s=1.0)]
    for label in labels:
        records += answers(label, prompts, decode_s=0.25, target_forwards=4)
    return read_whole_run(folder(tmp_path, run_config(labels, prompts), records, **more))


def cells(rows: list[Row], label: str) -> dict[str, str]:
    (row,) = [row for row in rows if row.method == label]
    keys = (
        "method", "tokens_per_forward", "decode_tok_s", "speedup", "verdict", "step_ratio", "e2e", "accuracy",
        "lossless", "cut",
    )  # fmt: skip
    return dict(zip(keys, [cell.text for cell in row.cells], strict=True))


def table(made: Run) -> list[Row]:
    return list(headline("humaneval v2", [made]).on("page").rows)


def test_a_row_stands_with_its_baseline(tmp_path: Path) -> None:
    made = run(tmp_path, right=lambda one: one.method == "ar", lossless={"ar": EXACT, "fast": EXACT})
    rows = table(made)
    assert [row.method for row in rows] == ["ar", "fast", "other"]
    assert cells(rows, "ar") | {"decode_tok_s": ""} == {
        "method": "ar", "tokens_per_forward": "1.00", "decode_tok_s": "", "speedup": "1",
        "verdict": "baseline", "step_ratio": "1", "e2e": "1", "accuracy": "8/8", "lossless": "exact", "cut": "100%",
    }  # fmt: skip
    found = cells(rows, "fast")
    expected = {"tokens_per_forward": "6.00", "speedup": "4.00", "verdict": "faster", "step_ratio": "0.67"}
    assert expected.items() <= found.items()
    assert found["accuracy"] == "0/8"
    assert cells(rows, "other")["lossless"] == "not checked"


def test_lossy_rows_stand_apart_and_last_and_without_quality_withhold_their_speed(tmp_path: Path) -> None:
    made = run(tmp_path, right=lambda one: True, lossless={"fast": LOSSY, "other": EXACT})
    rows = table(made)
    assert [row.method for row in rows] == ["ar", "other", "fast"]
    assert rows[0].part == rows[1].part != rows[2].part
    assert "lossy" in rows[2].part
    assert cells(rows, "fast")["speedup"] == "4.00", "it has an accuracy"
    made = run(tmp_path / "without", lossless={"fast": LOSSY, "other": EXACT})
    found = cells(table(made), "fast")
    assert found["verdict"] == "withheld"
    assert {found[key] for key in ("tokens_per_forward", "decode_tok_s", "speedup", "step_ratio", "e2e")} == {DASH}
    assert [row.method for row in candidates(made)] == ["other"]
    of_texts = ("lossless", "texts")
    shown = [row.method for block in run_section(made).tables() if block.name not in of_texts for row in block.rows]
    assert "other" in shown
    assert "fast" not in shown


def test_no_verdict_without_an_interval(tmp_path: Path) -> None:
    found = cells(table(run(tmp_path, prompts=5)), "fast")
    assert found["speedup"] == "4.00"
    assert found["verdict"] == "no verdict"

    def lie(summary: dict[str, Any]) -> None:
        summary["rows"][1]["speedup"]["verdict"] = "faster"

    lying = run(tmp_path / "b", prompts=5, change=lie)
    assert cells(table(lying), "fast")["verdict"] == "no verdict"


def test_a_simulated_row_says_so_wherever_it_stands(tmp_path: Path) -> None:
    records = [*answers("ar", 8, decode_s=1.0), *answers("jf", 8, decode_s=0.25, target_forwards=4)]
    made = read_whole_run(folder(tmp_path, run_config(["jf"], 8, lot=["jf"]), records))
    found = cells(table(made), "jf")
    assert found["method"] == "jf (simulated)"
    assert found["lossless"] == "simulated 4 ± 1"
    assert found["accuracy"] == DASH
    assert candidates(made) == []
    assert wording(str(next(iter(run_section(made).figures())).content))


@pytest.mark.parametrize("finish", [True, False])
def test_the_identity_holds_in_the_table_and_in_the_figure(tmp_path: Path, finish: bool) -> None:
    made = run(tmp_path, finish=finish)
    decomposition = {block.name: block for block in run_section(made).tables()}["decomposition"]
    for row in decomposition.rows:
        tpf, ratio, speedup = (cell.value for cell in row.cells[1:4])
        assert tpf is not None
        assert ratio is not None
        assert tpf * ratio == pytest.approx(speedup)
    (drawn,) = (one for one in run_section(made).figures() if one.name.endswith("-decomposition"))
    for label in ("fast", "other"):
        assert f"{label}: 6.00 × 0.67 = 4.00" in drawn.says
        shown = cells(table(made), label)
        assert (shown["tokens_per_forward"], shown["step_ratio"], shown["speedup"]) == ("6.00", "0.67", "4.00")
