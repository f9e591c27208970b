"""What ``run`` and ``show`` print by default: a table and at most five lines, with the winner and the next command."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.runs import EXACT, LOSSY, answers, folder, run_config

from specbench.report.gathering import Run, read_whole_run
from specbench.report.render.terminal import render_terminal
from specbench.report.tables.brief import run_brief
from specbench.report.tables.notes import notes
from specbench.results.summary_schema import Disturbed


def made(out: Path, speeds: dict[str, float], prompts: int = 12, lossless: Any = EXACT, **more: Any) -> Run:
    """Methods with these times AR's speed on every prompt."""
    records = [*answers("ar", prompts, decode_s=1.0, target_forwards=24)]
    for label, speed in speeds.items():
        records += answers(label, prompts, decode_s=1 / speed, target_forwards=12)
    graded = dict.fromkeys(["ar", *speeds], lossless)
    return read_whole_run(folder(out, run_config([*speeds], prompts), records, lossless=graded, **more))


def shown(
    run: Run, *, new: bool = True, called: str = "latest", width: int = 80, **summary: Any
) -> tuple[str, list[str]]:
    blocks, lines = run_brief(run.run, run.summary.model_copy(update=summary), "results/a-run", called=called, new=new)
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(render_terminal(blocks))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue(), lines


def test_the_winner_what_it_is_and_the_next_command(tmp_path: Path) -> None:
    run = made(tmp_path, {"pld": 1.5, "jacobi": 0.5})
    table, lines = shown(run)
    assert len(lines) <= 5
    assert [line.split()[0] for line in lines] == ["Found:", "Sure:", "Note:", "Next:", "run:"]
    assert lines[0].startswith("Found: pld, Prompt lookup decoding,")
    assert "1.50 times" in lines[0]
    assert "[1.50, 1.50] on 12 prompts" in lines[1]
    left = len(notes(run.run, run.summary)) - 2
    assert "specbench report latest" in lines[3]
    assert f"({left} more: specbench show latest --verbose)" in lines[2]
    assert lines[-1] == "run: results/a-run"
    assert table.splitlines()[0].startswith("humaneval v")
    assert not any(word in table for word in ("layers:", "memory", "TTFT"))


def test_a_run_that_is_shown_again_names_its_own_folder(tmp_path: Path) -> None:
    _, lines = shown(made(tmp_path, {"pld": 1.5}), new=False, called="results/a run")
    assert lines[-1] == "Next:  specbench report 'results/a run'"


def test_plain_decoding_may_win(tmp_path: Path) -> None:
    _, lines = shown(made(tmp_path, {"pld": 0.75, "jacobi": 0.5}))
    assert lines[0].startswith("Found: plain decoding (ar) is the fastest; the best method, pld, has 0.75 times")


def test_only_a_method_at_the_runs_precision_may_win(tmp_path: Path) -> None:
    run = made(tmp_path, {"jacobi": 3.0, "sam": 2.0, "pld": 1.5})
    names = {"jacobi": "ar@base", "sam": "vllm:ar"}
    rows = [row.model_copy(update={"method": names.get(row.method, row.method)}) for row in run.summary.rows]
    config = run.config.model_dump(mode="json")
    for spec in config["methods"]:
        if spec["label"] == "sam":
            spec.update(engine="vllm", options={"dtype": "float16"})
        spec["label"] = names.get(spec["label"], spec["label"])
    summary = run.summary.model_copy(update={"rows": rows})
    _, lines = run_brief({**run.run, **config}, summary, "a-run", called="latest", new=True)
    assert lines[0].startswith("Found: pld, ")
    assert not any(name in line for name in names.values() for line in lines[:2])


def test_another_text_is_said_with_the_speed(tmp_path: Path) -> None:
    _, lines = shown(made(tmp_path, {"pld": 2.0}, lossless=LOSSY))
    assert lines[0].endswith("but its text is not ar's")


def test_no_method_wins_without_an_interval(tmp_path: Path) -> None:
    _, lines = shown(made(tmp_path, {"pld": 2.0}, prompts=4))
    assert "no method is shown to be faster" in lines[0]
    assert "no interval: 4 prompts, it needs 6" in lines[1]


def test_a_disturbed_run_says_so_first(tmp_path: Path) -> None:
    why = "other processes took 31% of the cores (limit 5%)"
    _, lines = shown(made(tmp_path, {"pld": 2.0}), disturbed=Disturbed(reasons=[why]))
    assert lines[0].startswith("Found: unsure")
    assert why in lines[1]


def test_the_most_important_note_is_shown_and_the_others_are_counted(tmp_path: Path) -> None:
    run = made(tmp_path, {"pld": 2.0})
    _, lines = shown(run, complete=False)
    (note,) = [line for line in lines if line.startswith("Note:")]
    assert "not complete" in note
    assert len(lines) == 5


@pytest.mark.parametrize("label", ["llama.cpp:ar", "llama.cpp:draft", "vllm:ngram"])
def test_a_row_of_another_engine_is_one_line(tmp_path: Path, label: str) -> None:
    run = made(tmp_path, {"pld": 10.5})
    rows = [
        row.model_copy(update={"method": label, "accuracy": run.summary.rows[0].accuracy})
        if row.method == "pld"
        else row
        for row in run.summary.rows
    ]
    config = run.config.model_dump(mode="json")
    config["methods"] = [
        {**spec, "label": label, "name": label, "engine": label.partition(":")[0]} if spec["label"] == "pld" else spec
        for spec in config["methods"]
    ]
    blocks, _ = run_brief(
        {**run.run, **config}, run.summary.model_copy(update={"rows": rows}), "a-run", called="latest", new=True
    )
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(render_terminal(blocks))
    assert isinstance(console.file, io.StringIO)
    body = console.file.getvalue().rpartition("─")[2].strip().splitlines()
    assert [line.split()[0] for line in body] == ["ar", label]
