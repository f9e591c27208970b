"""Reading runs back, and the figures of traced ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from known import refusal
from rich.console import Console
from runs import COMMITTED, RESULTS

from specbench.common.errors import UsageError
from specbench.report.terminal.notes import LEGEND, notes
from specbench.report.terminal.run import headline
from specbench.results.read import ReadRun, read_run
from specbench.results.schema import PHASES

DEMO = next(RESULTS.glob("*-7480ef97"))


def shown(read: ReadRun, columns: int = 80) -> str:
    console = Console(width=columns, color_system=None)
    with console.capture() as captured:
        console.print(headline(read.run, read.summary))
    return captured.get()


@pytest.fixture
def copy(tmp_path: Path) -> Callable[..., Path]:
    """``copy(change_run, change_request, change_summary)``: a committed run with changed content; None leaves as is.

    A summary that is changed to None is left out, as in a run that is not finished.
    """

    def make(run: Any = None, request: Any = None, summary: Any = None) -> Path:
        source, made = DEMO, tmp_path / "run"
        made.mkdir()
        content = json.loads((source / "run.json").read_text())
        if run:
            run(content)
        (made / "run.json").write_text(json.dumps(content))
        lines = [json.loads(line) for line in (source / "requests.jsonl").read_text().splitlines()]
        for line in lines:
            if request:
                request(line)
        (made / "requests.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        content = json.loads((source / "summary.json").read_text())
        content = summary(content) if summary else content
        if content is not None:
            (made / "summary.json").write_text(json.dumps(content))
            (made / "DONE").write_text("")
        (made / "verdicts.jsonl").write_text((source / "verdicts.jsonl").read_text())
        return made

    return make


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: folder.name)
def test_a_committed_run_reads_and_shows(folder: Path) -> None:
    read = read_run(folder)
    assert len(read.records) == sum(row.requests for row in read.summary.rows) > 0
    text = shown(read)
    assert all(row.method in text for row in read.summary.rows)
    assert LEGEND.split(".")[0] in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("where", "change"),
    [
        ("accepted_lengths", lambda line: line.pop("accepted_lengths")),
        ("phases", lambda line: line.update(phases={})),
        ("measures.luck", lambda line: line.update(measures={"luck": "much"})),
        ("phases_s.draft", lambda line: line.update(phases_s={"draft": 3})),
    ],
)
def test_a_damaged_request_is_one_line_that_names_the_field(copy: Callable[..., Path], where: str, change: Any) -> None:
    text = refusal(UsageError, read_run, copy(request=change))
    assert f"field '{where}" in text


def split(line: dict[str, Any]) -> None:
    """The i-th phase of a step takes i ms of AR and 10 i ms of the others."""
    unit = 1e-3 if line["method"] == "ar" else 1e-2
    line["phases_s"] = {phase: [unit * at] * line["target_forwards"] for at, phase in enumerate(PHASES, 1)}


def lucky(line: dict[str, Any]) -> None:
    line["measures"] = {} if line["method"] == "ar" else {"luck": 1.25, "unheard_of": 2.0}


def described(run: dict[str, Any]) -> None:
    for method in run["methods"]:
        method["measures"] = {"luck": "guesses that were right"}


def test_phases_are_a_table_below_the_headline_of_those_that_were_traced(copy: Callable[..., Path]) -> None:
    read = read_run(copy(request=split, summary=lambda summary: None))
    lines = [line.split() for line in shown(read).splitlines()]
    at = lines.index(["ms", "a", "step"])
    header, _, ar, method = lines[at + 1 : at + 5]
    assert header == ["method", *PHASES, "host"]
    assert ar == ["ar", "1.00", "2.00", "3.00", "4.00", "5.00", "6.00", "18.00"]
    assert method == ["jacobi", "10.00", "20.00", "30.00", "40.00", "50.00", "60.00", "180.00"]
    plain, *others = read.summary.rows
    rows = [plain.model_copy(update={"phases": None}), *others]
    untraced = replace(read, summary=read.summary.model_copy(update={"rows": rows}))
    below = shown(untraced).partition("ms a step")[2]
    assert "jacobi" in below
    assert "\nar " not in below


def test_a_figure_of_a_method_is_told_in_its_own_words(copy: Callable[..., Path]) -> None:
    read = read_run(copy(described, lucky, lambda summary: None))
    told = notes(read.run, read.summary)
    assert "jacobi: 1.25 guesses that were right." in told
    assert "jacobi: 2.00 unheard_of." in told  # without a description its name has to do
    assert not any(note.startswith("ar: ") for note in told)
    assert told[-1] == LEGEND
