"""A dry run for the terminal: rows, memory and step time of each cell, as predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.report.tables.step_cost import milliseconds

_MIB = 2**20


def dry_run_table(content: Mapping[str, Any]) -> RenderableType:
    """The table of what :func:`specbench.runner.dry_run.dry_run` returns."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("cell", min_width=8, overflow="fold")
    together = {cell["concurrency"] for cell in content["cells"]}
    heads = [*(["at a time"] if together != {1} else []), "rows", "weights", "cache", "step", "MiB"]
    heads += ["ms ≥", "× ar"] if content["steps"] == "bound" else ["ms", "× ar"]
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for cell in content["cells"]:
        parts = [cell["weight_bytes"], cell["cache_bytes"], cell["step_bytes"]]
        known = None not in parts
        total = f"{'! ' if cell['fits'] is False else ''}{_mib(sum(parts))}" if known else "-"
        table.add_row(
            cell["label"],
            *([str(cell["concurrency"])] if together != {1} else []),
            f"{cell['rows']:,}",
            *(_mib(part) for part in parts),
            total,
            _step(cell),
            _over(cell),
            style="red" if cell["fits"] is False else None,
        )
    title = Text()
    title.append("dry run: predicted without running anything", style="bold")
    title.append(f" · {content['model']} {content['dtype']} · {content['device']}\n")
    parts_ = [Text(line, style="dim") for line in _legend(content)]
    return Group(title, table, Text(), *parts_)


def _legend(content: Mapping[str, Any]) -> list[str]:
    cells = content["cells"]
    lines = [
        "rows: of the largest tree. MiB: of weights, KV cache and a step of that cell alone, for "
        f"{content['capacity']:,} tokens a sequence; step: masks, activations and logits, at most, for not all are "
        "there at a time."
    ]
    if any(cell["weight_bytes"] is None for cell in cells):
        lines.append("The memory use of this model is known only after loading it.")
    if any(cell["fits"] is False for cell in cells):
        room = content["memory_bytes"] / _MIB
        lines.append(f"!: more than the {room:,.0f} MiB of {content['device']}; such a configuration does not fit.")
    if content["steps"] == "bound":
        lines.append(
            f"ms: at least, a step of so many rows behind {content['context']} tokens, by bandwidth and peak of "
            f"{content['device']}'s datasheet (roofline); measured steps take longer."
        )
    elif content["steps"] != "none":
        said = {
            "measured": "by a stored profile of it",
            "projected": f"onto {content['device']}, of which none is stored: from one of another device and the "
            "datasheet, as --project does. In brackets from one of its stories to the other, and so × ar",
        }[content["steps"]]
        made = "projected" if content["steps"] == "projected" else "predicted"
        lines.append(f"ms: a step of so many rows behind {content['context']} tokens, {made} {said}.")
    if any(cell["measured_rows"] is False for cell in cells):
        lines.append("~: outside of what the profile measured, where the nearest point's share of its bound is kept.")
    if content["hint"]:
        lines.append(content["hint"])
    return lines


def _mib(nbytes: float | None) -> str:
    return "-" if nbytes is None else f"{nbytes / _MIB:,.0f}"


def _over(cell: Mapping[str, Any]) -> str:
    if cell["times_ar"] is None:
        return "-"
    if cell["times_ar_low"] is None:
        return _times(cell["times_ar"])
    return f"{_times(cell['times_ar_low'])}-{_times(cell['times_ar_high'])}"


def _times(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _step(cell: Mapping[str, Any]) -> str:
    if cell["step_s"] is None:
        return "-"
    band = ""
    if cell["step_low_s"] is not None:
        band = f" ({milliseconds(cell['step_low_s'])}-{milliseconds(cell['step_high_s'])})"
    return f"{'' if cell['measured_rows'] else '~'}{milliseconds(cell['step_s'])}{band}"
