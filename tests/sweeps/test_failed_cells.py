"""Cells whose method's code fails: they are marked and never the best, the others are decoded to their end."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.runs import CELLS, HELD, broken, records, sweep, sweep_summary

from specbench.common import plugins
from specbench.report.tables.sweep import sentences
from specbench.sweeps.search import Kind
from specbench.sweeps.table import read_sweep

FAILING = {"toy n=4": "p3"}
FAULT = "method of toy n=4 failed in draft"


@pytest.mark.parametrize("kind", ["grid", "halving"])
def test_a_cell_that_fails_is_marked_and_the_others_go_on(tmp_path: Path, kind: Kind) -> None:
    path, worker = sweep(tmp_path, kind=kind, held_out=HELD, failing=FAILING)
    asked = [key for key in worker.decoded if key.startswith("toy n=4|")]
    assert len(asked) < 8, "it is asked nothing more"
    result = sweep_summary(path)
    assert result["sweep"]["stopped"]["toy n=4"] == "failed"
    assert {row["method"]: row["fault"] for row in result["rows"] if row["fault"]} == {"toy n=4": FAULT}
    assert result["sweep"]["best"] not in (None, "toy n=4")
    whole = [row for row in result["rows"] if row["method"] in ("ar", result["sweep"]["best"])]
    assert [row["prompts"] for row in whole] == [8, 8]

    read = read_sweep(path)
    assert read.finished
    (row,) = read.cells[read.cells["label"] == "toy n=4"].to_dict("records")
    assert (row["stopped"], row["fault"], row["set"]) == ("failed", FAULT, "tuning")
    assert row["speedup"] != row["speedup"], "figures on other prompts than the others' compare with nothing"
    assert sentences(read.cells)[-1] == f"Failed: toy n=4: {FAULT}."


def test_the_best_of_all_is_no_more_when_it_fails_on_prompts_it_was_not_chosen_by(tmp_path: Path) -> None:
    best = sweep_summary(sweep(tmp_path / "whole", held_out=HELD)[0])["sweep"]["best"]
    path, _ = sweep(tmp_path / "failing", held_out=HELD, failing={best: "h1"})
    found = sweep_summary(path)["sweep"]
    assert found["stopped"] == {best: "failed"}
    assert found["best"] not in (None, best)


def test_a_mended_one_is_decoded_by_the_same_command(tmp_path: Path) -> None:
    path, _ = sweep(tmp_path, failing=FAILING)
    before = len(records(path))
    again, worker = sweep(tmp_path, failing=FAILING)
    assert (again, worker.decoded, sweep_summary(path)["sweep"]["stopped"]) == (path, [], {"toy n=4": "failed"})
    _, worker = sweep(tmp_path)
    assert {key.split("|")[0] for key in worker.decoded} == {"toy n=4"}
    assert len(records(path)) == before + len(worker.decoded) == 8 * (1 + len(CELLS))
    result = sweep_summary(path)
    assert (result["sweep"]["stopped"], [row["fault"] for row in result["rows"]]) == ({}, [None] * 5)
    whole, _ = sweep(tmp_path / "whole")
    assert result["sweep"]["best"] == sweep_summary(whole)["sweep"]["best"]


def test_one_that_ended_the_process_is_not_tried_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(tmp_path, after=13)
    (path,) = tmp_path.iterdir()
    monkeypatch.setattr(plugins, "gone", {(str(path / "c1"), "toy n=8"): "method toy ended the process (by SIGSEGV)"})
    _, worker = sweep(tmp_path)
    assert not any(key.startswith("toy n=8|") for key in worker.decoded)
    result = sweep_summary(path)
    assert result["sweep"]["stopped"] == {"toy n=8": "failed"}
    assert [row["fault"] for row in result["rows"] if row["method"] == "toy n=8"] == [
        "method toy ended the process (by SIGSEGV)"
    ]


def test_every_cell_may_fail(tmp_path: Path) -> None:
    path, _ = sweep(tmp_path, failing=dict.fromkeys(CELLS, "p0"), held_out=HELD)
    found = sweep_summary(path)["sweep"]
    assert (found["best"], found["within_noise"], {*found["stopped"].values()}) == (None, [], {"failed"})
    assert read_sweep(path).cells["stopped"].tolist().count("failed") == 4
