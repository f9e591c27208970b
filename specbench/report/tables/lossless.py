"""What ``check-lossless`` shows: counts of each sampling, rates over prompts, where answers parted, and the noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from specbench.report.tables.figures import plain
from specbench.report.tables.run import rate_table
from specbench.results import BASELINE
from specbench.results.grades import prompt_of
from specbench.results.summary_schema import Rate

#: Divergences that are listed; all of them are in the JSON.
_LISTED = 12


def lossless_report(found: Mapping[str, Any]) -> RenderableType:
    """The tables of a check, from what ``check-lossless --json`` prints."""
    parts: list[RenderableType] = [Text(f"{task}: {drawn}", "dim") for task, drawn in found["drawn"].items()]
    if found["rows"]:
        parts += [_counts(found["rows"])]
        parts += [
            Text(),
            rate_table(_rates(found["rates"])),
            Text("prompts graded by their worst answer, with 95% intervals", "dim"),
        ]
    if diverged := [(row, each) for row in found["rows"] for each in row["divergences"]]:
        parts += [Text(), _divergences(diverged)]
        if more := len(diverged) - _LISTED:
            parts += [Text(f"and {more} more; use --json to list all", "dim")] if more > 0 else []
    if found["distributions"]:
        parts += [Text()] if parts else []
        parts += [Text(distribution(each)) for each in found["distributions"]]
    said = _noises([row["noise"] for row in found["rows"] if row["noise"]])
    parts += [Text(), *(Text(line, "dim") for line in said)] if said else []
    return Group(*parts)


def _rates(found: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Rate]]:
    return {name: {grade: Rate(**rate) for grade, rate in grades.items()} for name, grades in found.items()}


def _counts(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = plain(["task", "T", "seed", "method", "exact", "tie", "lossy", "verdict"], left=("method", "verdict"))
    for row in rows:
        where = [row["task"], f"{row['temperature']:g}", str(row["seed"]), row["method"]]
        table.add_row(*where, *(str(row[name]) for name in ("exact", "numeric_tie", "lossy")), row["verdict"])
    return table


def _divergences(diverged: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> RenderableType:
    table = plain(["left AR", "method", "T", "seed", "at token", "gap", "class"], left=("method", "class"))
    for row, each in diverged[:_LISTED]:
        gap = "∞" if each["gap"] is None else f"{each['gap']:.2g}"
        where = [f"{row['temperature']:g}", str(row["seed"]), str(each["at"]), gap]
        name, turn = prompt_of(each["prompt"])
        table.add_row(f"{name}{turn and f', turn {turn}'}", row["method"], *where, each["grade"])
    return table


def _noises(measured: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the noise floor comes from: a sentence for each device, dtype and attention backend."""
    found = []
    for where in dict.fromkeys((each["device"], each["dtype"], each["attention"]) for each in measured):
        # The rows of a sampling share one measurement.
        mine = {tuple(e.items()): e for e in measured if (e["device"], e["dtype"], e["attention"]) == where}.values()
        largest = max(mine, key=lambda each: each["floor"])
        tokens, flips = (sum(each[name] for each in mine) for name in ("positions", "flips"))
        found.append(
            f"Noise floor of AR's top-2 gap on {where[0]} in {where[1]}, attention {where[2]}: "
            f"{largest['floor']:.3g} at most, twice the largest change between 1 and {largest['rows']} rows over "
            f"{tokens} tokens ({flips} of them flipped)."
        )
    return found


def distribution(tested: Mapping[str, Any]) -> str:
    """What a two-sample test found, with what it could have found."""
    where = f"{tested['method']} on {tested['task']} at T={tested['temperature']:g}, noise of its own: "
    if tested["verdict"] == "too few samples":
        return (
            f"{where}{tested['answers']} answers share too few prefixes to compare distributions; give it more "
            "--seeds, such as 0:49, or a lower temperature"
        )
    whose = "AR's" if tested["against"] == BASELINE else f"those of {tested['against']}"
    different = tested["verdict"] == "different"
    said = f"its texts are distributed otherwise than {whose}" if different else f"no difference from {whose} shown"
    return (
        f"{where}{said} (p = {tested['p_value']:.2g}; {tested['answers']} answers, {tested['contexts']} contexts; a "
        f"total variation of {tested['detectable']:.0%} in each would be seen)"
    )
