"""Tables of ``compare``: differences between the runs' settings, then the speedup of each row with its interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specbench.report.document import Block, Cell, Column, Row, Table, Title, Words
from specbench.report.tables import cell
from specbench.report.tables.cell import number, speedup
from specbench.report.tables.columns import SPEEDUP, TOK_S, TPF
from specbench.report.tables.notes import differ_in_length, gained, tells
from specbench.results import BASELINE, AccuracyDifference, Speedup

LEGEND = (
    "Arrows go from A to the other run. speedup: A's decode seconds per token divided by the other run's, on the same "
    "requests, with a 95% interval over prompts. It includes any change of the machine's speed between the runs; "
    "figures over AR cancel such a change if it slowed AR equally."
)


def comparison_report(found: Mapping[str, Any], prompts: bool = False) -> list[Block]:
    """The tables of a comparison; ``prompts`` adds a table per row with each prompt, the slowest first."""
    task, runs = found["task"], found["runs"]
    blocks: list[Block] = [Title(f"{task['name']} v{task['version']}", task["drawn"])]
    for run in runs:
        facts = [f"{run['model']} {run['dtype']}", run["device"], run["commit"] and f"commit {run['commit']}"]
        blocks.append(Title(run["letter"], run["folder"], [" · ".join(part for part in facts if part)]))
    warnings = [f"{run['letter']} was disturbed: {'; '.join(run['disturbed'])}. Verdicts are unsure."
                for run in runs if run["disturbed"]]  # fmt: skip
    warnings += [f"{letter} differs from A: {'; '.join(lines)}." for letter, lines in found["differs"].items() if lines]
    if warnings:
        blocks.append(Words(warnings, "warning"))
    blocks.append(_table(found))
    blocks += [_by_prompt(row) for row in found["rows"] if prompts]
    return [*blocks, Words([*_notes(found), LEGEND], "notes")]


def comparison_row(row: Mapping[str, Any]) -> str:
    """Name of a comparison's row: the run and its method, or both methods."""
    mine, its = row["methods"]
    return f"{row['run']} {its}" if mine == its else f"{row['run']} {its} / A {mine}"


def _ratio(found: Mapping[str, Any] | None) -> Speedup | None:
    return None if found is None else Speedup.model_validate(found)


def _table(found: Mapping[str, Any]) -> Table:
    metric = found["task"]["metric"]
    columns = [
        Column("row", "row", words=True), TOK_S, SPEEDUP,
        TPF, Column("step_ratio", "step"),
        *([Column("accuracy", metric)] if metric else []), Column("answers_differ", "differ"),
    ]  # fmt: skip
    body = []
    for row in found["rows"]:
        cells = [
            Cell(comparison_row(row)), Cell("→".join(number(value, 1) for value in row["decode_tok_s"])),
            cell.one_line(_ratio(row["speedup"])),
            Cell("→".join(number(value, 2) for value in row["tokens_per_forward"])),
            cell.figure(row["step_ratio"], 2),
        ]  # fmt: skip
        if metric:
            cells.append(Cell("→".join("–" if known is None else str(known["passed"]) for known in row["right"])))
        body.append(Row([*cells, Cell(f"{row['answers_differ']}/{row['requests']}")]))
    return Table("comparison", "", columns, body)


def _by_prompt(row: Mapping[str, Any]) -> Table:
    columns = [
        Column("prompt", comparison_row(row), words=True), Column("ms_per_token", "ms/token"),
        SPEEDUP, Column("answer", "answer", words=True),
    ]  # fmt: skip
    body = []
    for each in sorted(row["prompts"], key=lambda each: (each["speedup"] is None, each["speedup"])):
        times = "→".join("–" if s is None else f"{1e3 * s:.1f}" for s in each["seconds_per_token"])
        answer = "same" if each["same_answer"] else "differs"
        body.append(Row([Cell(each["prompt"]), Cell(times), cell.figure(each["speedup"], 2), Cell(answer)]))
    return Table(f"prompts {comparison_row(row)}", "", columns, body)


def _notes(found: Mapping[str, Any]) -> list[str]:
    """A sentence per row, and one on its right answers if the answers differ."""
    notes = []
    for row in found["rows"]:
        ratio, over_ar, name = _ratio(row["speedup"]), _ratio(row["over_ar"]), comparison_row(row)
        if ratio is None:
            notes.append(f"{name}: no answer is longer than one token, so there is no speed to compare.")
            continue
        a, other = row["tokens_per_forward"]
        text = f"{name}: {ratio.verdict}; {number(ratio.value, 3)} = "
        text += f"{number(other / a if a and other else None, 2)} ratio of TPF × "
        text += f"{number(row['step_ratio'], 2)} ratio of step times"
        if over_ar:
            text += f"; over AR {speedup(over_ar)}, {over_ar.verdict}"
        notes.append(f"{text}.{tells(ratio)}")
        if row["accuracy_difference"] and row["answers_differ"]:
            notes.append(f"{name}: {gained(AccuracyDifference.model_validate(row['accuracy_difference']))}.")
        if row["length_changed"]:
            notes.append(f"{name}: {differ_in_length(row['length_changed'])} from A's.")
    if all(row["methods"] == [BASELINE, BASELINE] for row in found["rows"]):
        notes.append("Only AR is compared; use RUN:METHOD to compare rows with different names.")
    return notes
