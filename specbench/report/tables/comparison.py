"""What ``compare`` shows: the runs, what else differs between them, then row by row how much faster and how sure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from specbench.report.tables.figures import number, plain, speedup
from specbench.report.tables.notes import gained, tells
from specbench.results import BASELINE
from specbench.results.summary_schema import AccuracyDifference, Speedup

LEGEND = (
    "Arrows lead from A to the other run. speedup: A's decode seconds per token over the other run's on the same "
    "requests, with a 95% interval over prompts. It knows nothing of a machine that was slower in one of the runs; what"
    " is said over AR does, as far as AR was hit alike."
)


def comparison_report(found: Mapping[str, Any], prompts: bool = False) -> RenderableType:
    """The tables of a comparison; with ``prompts`` each prompt by itself, the slowest first."""
    task = found["task"]
    title = Text()
    title.append(f"{task['name']} v{task['version']}", style="bold")
    title.append(f" · {task['drawn']}")
    for run in found["runs"]:
        title.append(f"\n{run['letter']}  ", style="bold")
        title.append(f"{run['folder']}\n")
        said = [f"{run['model']} {run['dtype']}", run["device"], run["commit"] and f"commit {run['commit']}"]
        title.append("   " + " · ".join(part for part in said if part), style="dim")
    parts: list[RenderableType] = [title, Text()]
    for run in found["runs"]:
        if why := run["disturbed"]:
            parts += [Text(f"{run['letter']} was disturbed: {'; '.join(why)}. Verdicts are unsure.", "yellow"), Text()]
    for letter, lines in found["differs"].items():
        if lines:
            parts += [Text(f"{letter} differs from A: {'; '.join(lines)}.", "yellow"), Text()]
    parts += [_table(found), Text()]
    if prompts:
        for row in found["rows"]:
            parts += [_by_prompt(row), Text()]
    return Group(*parts, *(Text(line, "dim") for line in [*_notes(found), LEGEND]))


def row_name(row: Mapping[str, Any]) -> str:
    """What a row of a comparison is called: the run, and the method or both of them."""
    mine, its = row["methods"]
    return f"{row['run']} {its}" if mine == its else f"{row['run']} {its} / A {mine}"


def _ratio(found: Mapping[str, Any] | None) -> Speedup | None:
    return None if found is None else Speedup.model_validate(found)


def _table(found: Mapping[str, Any]) -> RenderableType:
    metric = found["task"]["metric"]
    columns = ["row", "tok/s", "speedup", "TPF", "step", *([metric] if metric else []), "differ"]
    table = plain(columns, left=("speedup",))
    for row in found["rows"]:
        right = ["→".join("–" if known is None else str(known["passed"]) for known in row["right"])] if metric else []
        table.add_row(
            row_name(row),
            "→".join(number(value, 1) for value in row["decode_tok_s"]),
            speedup(_ratio(row["speedup"])),
            "→".join(number(value, 2) for value in row["tokens_per_forward"]),
            number(row["step_ratio"], 2),
            *right,
            f"{row['answers_differ']}/{row['requests']}",
        )
    return table


def _by_prompt(row: Mapping[str, Any]) -> RenderableType:
    table = plain([row_name(row), "ms/token", "speedup", "answer"], left=("answer",))
    for each in sorted(row["prompts"], key=lambda each: (each["speedup"] is None, each["speedup"])):
        times = "→".join("–" if s is None else f"{1e3 * s:.1f}" for s in each["seconds_per_token"])
        table.add_row(each["prompt"], times, number(each["speedup"], 2), "same" if each["same_answer"] else "differs")
    return table


def _notes(found: Mapping[str, Any]) -> list[str]:
    """A sentence on each row, and one on its right answers where there is something to say."""
    notes = []
    for row in found["rows"]:
        ratio, over_ar, name = _ratio(row["speedup"]), _ratio(row["over_ar"]), row_name(row)
        if ratio is None:
            notes.append(f"{name}: no answer is longer than one token, so there is no speed to compare.")
            continue
        a, other = row["tokens_per_forward"]
        said = f"{name}: {ratio.verdict}; {number(ratio.value, 3)} = "
        said += f"{number(other / a if a and other else None, 2)} TPF × "
        said += f"{number(row['step_ratio'], 2)} step-time ratio"
        if over_ar:
            said += f"; over AR {speedup(over_ar)}, {over_ar.verdict}"
        notes.append(f"{said}.{tells(ratio)}")
        if row["accuracy_difference"] and row["answers_differ"]:
            notes.append(f"{name}: {gained(AccuracyDifference.model_validate(row['accuracy_difference']))}.")
        if row["length_changed"]:
            notes.append(f"{name}: {row['length_changed']} answers differ in length from A's.")
    if all(BASELINE in row["methods"] for row in found["rows"]):
        notes.append("Only AR is in both runs; use RUN:METHOD to compare rows with different names.")
    return notes
