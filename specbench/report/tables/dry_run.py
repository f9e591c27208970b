"""Table of a dry run: predicted rows, memory and step time of each configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specbench.report.document import Block, Cell, Column, Row, Table, Title, Tone, Words
from specbench.report.tables.step_cost import milliseconds

_MIB = 2**20


def dry_run_report(content: Mapping[str, Any]) -> list[Block]:
    """The table and legend of a result of :func:`specbench.planning.dry_runs.dry_run`."""
    title = Title(
        "dry run: predicted without running anything", f"{content['model']} {content['dtype']} · {content['device']}"
    )
    several = {each["concurrency"] for each in content["cells"]} != {1}
    columns = [
        Column("configuration", "configuration", words=True), *([Column("at", "at a time")] if several else []),
        Column("rows", "rows"), Column("weights_mib", "weights"), Column("cache_mib", "cache"),
        Column("step_mib", "step"), Column("mib", "MiB"),
        Column("step_ms", "ms ≥" if content["steps"] == "bound" else "ms"), Column("times_ar", "× ar"),
    ]  # fmt: skip
    body = []
    for each in content["cells"]:
        parts = [each["weight_bytes"], each["cache_bytes"], each["step_bytes"]]
        total = _mib(None if None in parts else sum(parts))
        texts = [
            each["label"], *([str(each["concurrency"])] if several else []), f"{each['rows']:,}", *map(_mib, parts),
            f"{'! ' if each['fits'] is False else ''}{total}", _step(each), _over(each),
        ]  # fmt: skip
        tone: Tone = "bad" if each["fits"] is False else ""
        body.append(Row([Cell(text, tone=tone) for text in texts]))
    return [title, Table("dry run", "", columns, body), Words(_legend(content), "notes")]


def _legend(content: Mapping[str, Any]) -> list[str]:
    cells = content["cells"]
    lines = [
        "rows: largest tree. MiB: weights, KV cache and step of that configuration alone, for "
        f"{content['capacity']:,} tokens per sequence. step: upper bound for masks, activations and logits, which do "
        "not all exist at the same time."
    ]
    if any(cell["weight_bytes"] is None for cell in cells):
        lines.append("The memory use of this model is known only after loading it.")
    if any(cell["fits"] is False for cell in cells):
        room = content["memory_bytes"] / _MIB
        lines.append(f"!: does not fit into the {room:,.0f} MiB of {content['device']}.")
    if content["steps"] == "bound":
        lines.append(
            f"ms: lower bound for a step of that many rows after {content['context']} tokens, from the bandwidth and "
            f"peak in {content['device']}'s datasheet (roofline); measured steps take longer."
        )
    elif content["steps"] != "none":
        source = {
            "measured": "from a stored profile of this device",
            "projected": f"onto {content['device']}, without a stored profile, from another device's profile and the "
            "datasheet, as with --project. In brackets and in × ar: the range of its two assumptions",
        }[content["steps"]]
        made = "projected" if content["steps"] == "projected" else "predicted"
        lines.append(f"ms: a step of that many rows after {content['context']} tokens, {made} {source}.")
    if any(cell["measured_rows"] is False for cell in cells):
        lines.append(
            "~: outside the measured range of the profile; extrapolated with the nearest point's share of its bound."
        )
    plain = next((cell for cell in cells if cell["rows"] == 1 and cell["step_s"]), None)
    if content["rates"] and plain:
        tokens = content["capacity"] - content["context"]
        most = plain["concurrency"] / (plain["step_s"] * tokens)
        lines.append(
            f"--rate {','.join(content['rates'])}: with {tokens} tokens an answer, {plain['label']} "
            f"can finish {most:.3g} requests per second at best, prefills not counted; at higher rates requests queue. "
            "Others finish its number times their tokens per forward, divided by × ar."
        )
    elif content["rates"]:
        lines.append(f"--rate {','.join(content['rates'])}: not predicted, because no step time of ar is.")
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
