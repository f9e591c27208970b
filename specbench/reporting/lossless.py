"""What ``check-lossless`` shows: counts of each sampling, rates over prompts, where answers parted, and the noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from specbench.reporting.table import plain, rate_table

#: Divergences that are listed; all of them are in the JSON.
_LISTED = 12


def lossless_report(found: Mapping[str, Any]) -> RenderableType:
    """The tables of a check.

    Args:
        found: what ``check-lossless --json`` prints.
    """
    parts: list[RenderableType] = [_counts(found["rows"])]
    if found["rates"]:
        parts += [Text(), rate_table(found["rates"]), Text("prompts by their worst answer, with 95% intervals", "dim")]
    if diverged := [(row, each) for row in found["rows"] for each in row["divergences"]]:
        parts += [Text(), _divergences(diverged)]
        if more := len(diverged) - _LISTED:
            parts += [Text(f"and {more} more; --json has them all", "dim")] if more > 0 else []
    if found["distributions"]:
        parts += [Text(), *(Text(distribution(each)) for each in found["distributions"])]
    said = dict.fromkeys(noise(row["noise"]) for row in found["rows"] if row["noise"])
    parts += [Text(), *(Text(line, "dim") for line in said)] if said else []
    return Group(*parts)


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
        table.add_row(each["prompt"], row["method"], *where, each["grade"])
    return table


def noise(measured: Mapping[str, Any]) -> str:
    """Where the noise floor comes from, in a sentence."""
    return (
        f"Noise floor of AR's top-2 gap on {measured['device']} in {measured['dtype']}, attention "
        f"{measured['attention']}: {measured['floor']:.3g}, twice the largest change between 1 and {measured['rows']} "
        f"rows over {measured['positions']} tokens ({measured['flips']} of them flipped)."
    )


def distribution(tested: Mapping[str, Any]) -> str:
    """What a two-sample test found, with what it could have found."""
    where = f"{tested['method']} on {tested['task']} at T={tested['temperature']:g}, noise of its own: "
    if tested["verdict"] == "too few samples":
        return (
            f"{where}{tested['answers']} answers share too few prefixes to compare distributions; give it more "
            "--seeds, such as 0:49, or a lower temperature"
        )
    said = {"different": "its texts are distributed otherwise than AR's"}.get(tested["verdict"], "no difference shown")
    return (
        f"{where}{said} (p = {tested['p_value']:.2g}; {tested['answers']} answers, {tested['contexts']} contexts; a "
        f"total variation of {tested['detectable']:.0%} in each would be seen)"
    )
