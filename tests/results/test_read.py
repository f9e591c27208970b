"""Reading runs back: those that older versions wrote, and what the table makes of what newer ones add."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.asserting import refusal
from support.runs import COMMITTED, EARLIER
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.report.terminal.notes import LEGEND, notes
from specbench.report.terminal.run import headline
from specbench.results.read import ReadRun, read_run
from specbench.results.schema import PHASES
from specbench.results.stats import INTERVAL

#: Fields that came later: of a request, of a run, of a method in it, of its model.
LATER = {"request": {"phases_s", "measures"}, "run": {"trace"}, "method": {"measures"}, "model": {"template"}}
LATER_OF_A_ROW = {"phases", "measures"}


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
        source, made = EARLIER[0], tmp_path / "run"
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


def old_run(content: dict[str, Any]) -> None:
    """A ``run.json`` from before the later fields."""
    for name in LATER["run"]:
        content.pop(name, None)
    for name in LATER["model"]:
        content["model"].pop(name, None)
    for method in content["methods"]:
        for name in LATER["method"]:
            method.pop(name, None)


def old_request(line: dict[str, Any]) -> None:
    for name in LATER["request"]:
        line.pop(name, None)


def old_summary(content: dict[str, Any]) -> dict[str, Any]:
    for row in content["rows"]:
        for name in LATER_OF_A_ROW:
            row.pop(name, None)
    return content


# ------------------------------------------------------------------ older runs


@pytest.mark.parametrize("folder", [*EARLIER, *COMMITTED], ids=lambda folder: folder.name)
def test_a_committed_run_reads_and_shows(folder: Path) -> None:
    read = read_run(folder)
    assert len(read.records) == sum(row.requests for row in read.summary.rows) > 0
    text = shown(read)
    assert all(row.method in text for row in read.summary.rows)
    assert LEGEND.split(".")[0] in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_a_run_from_before_traces_and_figures_reads_and_shows(copy: Callable[..., Path]) -> None:
    read = read_run(copy(old_run, old_request, old_summary))
    assert read.config.trace is False
    assert read.config.model.template is None
    assert {record.phases_s for record in read.records} == {None}
    assert [record.measures for record in read.records] == [{}] * len(read.records)
    text = shown(read)
    assert "ms a step" not in text
    assert text == shown(read_run(EARLIER[0]))


def test_an_unfinished_run_from_before_is_summed_up_anew(copy: Callable[..., Path]) -> None:
    read = read_run(copy(old_run, old_request, lambda summary: None))
    finished = read_run(EARLIER[0])
    figures = ("method", "tokens", "tokens_per_forward", "decode_tok_s", "accuracy")
    assert [[getattr(row, name) for name in figures] for row in read.summary.rows] == [
        [getattr(row, name) for name in figures] for row in finished.summary.rows
    ]
    # The interval is made in another way by now, and both say how.
    ours, theirs = (row.speedup for row in (read.summary.rows[1], finished.summary.rows[1]))
    assert ours is not None
    assert theirs is not None
    assert ours.value == theirs.value
    assert (read.summary.interval, finished.summary.interval) == (INTERVAL, None)
    old = "percentile bootstrap, as an earlier version made them"
    assert [old in " ".join(shown(each).split()) for each in (read, finished)] == [False, True]
    assert [(row.phases, row.measures) for row in read.summary.rows] == [(None, {})] * 2


@pytest.mark.parametrize(
    ("where", "change"),
    [
        ("accepted_lengths", lambda line: line.pop("accepts")),
        ("phases", lambda line: line.update(phases={})),
        ("measures.luck", lambda line: line.update(measures={"luck": "much"})),
        ("phases_s.draft", lambda line: line.update(phases_s={"draft": 3})),
    ],
)
def test_a_damaged_request_is_one_line_that_names_the_field(copy: Callable[..., Path], where: str, change: Any) -> None:
    text = refusal(UsageError, read_run, copy(request=change))
    assert f"field '{where}" in text


# ------------------------------------------------------------------ what newer ones add


def split(line: dict[str, Any]) -> None:
    """The i-th phase of a step takes i ms of AR and 10 i ms of the others."""
    unit = 1e-3 if line["method"] == "ar" else 1e-2
    line["phases_s"] = {phase: [unit * at] * line["forwards"] for at, phase in enumerate(PHASES, 1)}


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
    assert wording("\n".join(told))
    assert "jacobi: 2.00 unheard_of." in told  # without a description its name has to do
    assert not any(note.startswith("ar: ") for note in told)
    assert told[-1] == LEGEND
