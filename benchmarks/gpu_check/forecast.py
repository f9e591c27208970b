"""A table of what the parts predict for GPUs that are not in this machine. None of it was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module

from benchmarks.gpu_check.bench import Size
from benchmarks.gpu_check.catalog import Part
from benchmarks.gpu_check.nodes import COPIED, LEAST, MOST, NODE_S, ceilings_of
from benchmarks.gpu_check.page import label
from benchmarks.gpu_check.predict import Known, with_range
from benchmarks.gpu_check.records import Figure
from specbench.common import UsageError
from specbench.hardware import gpus
from specbench.hardware.gpus import Gpu
from specbench.hardware.stored_profile import datasheet

_DTYPE = "bfloat16"
_NONE = "–"


def table(names: Sequence[str], parts: Sequence[Part]) -> str:
    """Return a Markdown table with a row for each predicted figure and a column for each GPU.

    Args:
        names: names of GPUs from ``specbench list gpus``.
        parts: parts in order; parts without predictions have no rows.

    Raises:
        UsageError: a GPU is unknown, no GPU is named, or its datasheet lacks the check's precision.
        EnvironmentRefused: kernels cannot be counted without triton.
    """
    cards = list({card.name: card for card in map(gpus.find, filter(None, map(str.strip, names)))}.values())
    if not cards:
        raise UsageError("--predict names no GPU; give comma-separated names from specbench list gpus")
    columns = [{named(figure): figure for figure in _figures(card, parts)} for card in cards]
    rows = [["figure", *(f"predicted, {card.name}" for card in cards)], ["---"] * (1 + len(cards))]
    # A GPU with less memory lacks some rows; the order of the parts is kept.
    fullest = max(columns, key=len)
    for name in fullest:
        rows.append([name, *(_cell(column.get(name)) for column in columns)])
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        f"Predicted, not measured: {_DTYPE}, {COPIED:.3g} of a datasheet's bandwidth, {NODE_S * 1e6:g} µs per kernel "
        f"({LEAST.node_s * 1e6:g} to {MOST.node_s * 1e6:g}); all of these are assumptions.",
        "",
        *("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows),
    ]
    if any(len(column) < len(fullest) for column in columns):
        lines += ["", f"{_NONE}: the whole model does not fit in the GPU's memory; the check uses fewer layers there."]
    return "\n".join(lines)


def named(figure: Figure) -> str:
    """Name of a figure as on the check's page, with its unit unless the name ends in it."""
    name = label(figure)
    return name if figure.unit in ("ratio", "share", *name.split()) else f"{name}, {figure.unit}"


def _figures(card: Gpu, parts: Sequence[Part]) -> Iterator[Figure]:
    peaks = datasheet(card, _DTYPE)
    if peaks is None:
        raise UsageError(
            f"cannot predict for {card.name}: its datasheet has no {_DTYPE} peak, which the check uses; name another "
            "GPU"
        )
    known = Known(Size(), ceilings_of(card, _DTYPE), _DTYPE, card, peaks)
    for part in parts:
        if part.predicts:
            yield from with_range(import_module(part.target.partition(":")[0]).predicted, known)


def _cell(figure: Figure | None) -> str:
    return _NONE if figure is None or figure.predicted is None else figure.expected
