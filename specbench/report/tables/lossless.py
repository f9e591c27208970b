"""Tables of ``check-lossless``: counts per sampling, rates over prompts, first differences, and the noise floor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.analysis import prompt_of
from specbench.report.document import Block, Cell, Column, Row, Source, Table, Words
from specbench.report.tables import cell
from specbench.report.tables.columns import METHOD, VERDICT
from specbench.report.tables.run_parts import grades
from specbench.results import BASELINE, Rate

#: Divergences listed in the table; the JSON has all.
_LISTED = 12


def lossless_report(found: Mapping[str, Any]) -> list[Block]:
    """The tables of a check, from the output of ``check-lossless --json``."""
    blocks: list[Block] = []
    if found["drawn"]:
        blocks.append(Words([f"{task}: {drawn}" for task, drawn in found["drawn"].items()], "notes"))
    if found["rows"]:
        blocks += [_counts(found["rows"]), grades("", _rates(found["rates"]))]
    if diverged := [(row, each) for row in found["rows"] for each in row["divergences"]]:
        blocks.append(_divergences(diverged))
    if found["distributions"]:
        blocks.append(Words([distribution(each) for each in found["distributions"]]))
    if lines := _noises([row["noise"] for row in found["rows"] if row["noise"]]):
        blocks.append(Words(lines, "notes"))
    return blocks


def _rates(found: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Rate]]:
    return {name: {grade: Rate(**rate) for grade, rate in grades.items()} for name, grades in found.items()}


def _counts(rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = [
        Column("task", "task", words=True), Column("temperature", "T"), Column("seed", "seed"), METHOD,
        Column("exact", "exact"), Column("numeric_tie", "tie"), Column("lossy", "lossy"),
        VERDICT,
    ]  # fmt: skip
    body = []
    for row in rows:
        where = [Cell(row["task"]), cell.figure(row["temperature"], None), cell.count(row["seed"]), Cell(row["method"])]
        counts = [cell.count(row[name]) for name in ("exact", "numeric_tie", "lossy")]
        body.append(Row([*where, *counts, Cell(row["verdict"])]))
    return Table("checked", "", columns, body)


def _divergences(diverged: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Table:
    columns = [
        Column("prompt", "differs from AR", words=True), METHOD, Column("temperature", "T"), Column("seed", "seed"),
        Column("at", "at token"), Column("gap", "gap"), Column("class", "class", words=True),
    ]  # fmt: skip
    body = []
    for row, each in diverged[:_LISTED]:
        gap = Cell("∞") if each["gap"] is None else Cell(f"{each['gap']:.2g}", each["gap"])
        where = [cell.figure(row["temperature"], None), cell.count(row["seed"]), cell.count(each["at"]), gap]
        name, turn = prompt_of(each["prompt"])
        body.append(Row([Cell(f"{name}{turn and f', turn {turn}'}"), Cell(row["method"]), *where, Cell(each["grade"])]))
    more = len(diverged) - _LISTED
    return Table("left", "", columns, body, Source(formula=f"and {more} more; use --json to list all" * (more > 0)))


def _noises(measured: Sequence[Mapping[str, Any]]) -> list[str]:
    """The noise floor, a sentence for each device, dtype and attention backend."""
    found = []
    for where in dict.fromkeys((each["device"], each["dtype"], each["attention"]) for each in measured):
        # The rows of a sampling share one measurement.
        mine = {tuple(e.items()): e for e in measured if (e["device"], e["dtype"], e["attention"]) == where}.values()
        largest = max(mine, key=lambda each: each["floor"])
        tokens, flips = (sum(each[name] for each in mine) for name in ("positions", "flips"))
        found.append(
            f"Noise floor of AR's top-2 gap on {where[0]} in {where[1]}, attention {where[2]}: "
            f"at most {largest['floor']:.3g}, twice the largest change between 1 and {largest['rows']} rows over "
            f"{tokens} tokens (the best token changed for {flips})."
        )
    return found


def distribution(tested: Mapping[str, Any]) -> str:
    """Result of a two-sample test, and the smallest difference that it could have detected."""
    where = f"{tested['method']} on {tested['task']} at T={tested['temperature']:g}, sampled with its own noise: "
    if tested["verdict"] == "too few samples":
        return (
            f"{where}{tested['answers']} answers share too few prefixes to compare distributions; use more "
            "--seeds, such as 0:49, or a lower temperature"
        )
    whose = "AR's" if tested["against"] == BASELINE else f"those of {tested['against']}"
    different = tested["verdict"] == "different"
    text = f"the distribution of its texts differs from {whose}" if different else f"no difference from {whose} shown"
    return (
        f"{where}{text} (p = {tested['p_value']:.2g}; {tested['answers']} answers, {tested['contexts']} contexts; "
        f"would detect a total variation of {tested['detectable']:.0%} in each)"
    )
