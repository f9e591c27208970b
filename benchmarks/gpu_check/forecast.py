"""Forecast: what the parts predict for cards that are not here, as a table. Nothing of it was measured."""

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
    """A row for each figure that has a prediction, a column for each card, in Markdown.

    Args:
        names: of cards, as ``specbench list gpus`` has them.
        parts: in order; those that predict nothing have no rows.

    Raises:
        UsageError: no such card is known, or none is named, or it lacks what the check runs in.
        EnvironmentRefused: kernels cannot be counted, because there is no triton.
    """
    cards = list({card.name: card for card in map(gpus.find, filter(None, map(str.strip, names)))}.values())
    if not cards:
        raise UsageError("--predict names nothing; give names of list gpus, comma-separated")
    columns = [{named(figure): figure for figure in _figures(card, parts)} for card in cards]
    rows = [["figure", *(f"predicted, {card.name}" for card in cards)], ["---"] * (1 + len(cards))]
    # A card with less memory lacks rows of the others; the order is that of the parts all the same.
    fullest = max(columns, key=len)
    for name in fullest:
        rows.append([name, *(_cell(column.get(name)) for column in columns)])
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        f"Predicted, not measured: {_DTYPE}, {COPIED:.3g} of a datasheet's bandwidth, {NODE_S * 1e6:g} µs for a kernel "
        f"({LEAST.node_s * 1e6:g} to {MOST.node_s * 1e6:g}); all assumed.",
        "",
        *("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows),
    ]
    if any(len(column) < len(fullest) for column in columns):
        lines += ["", f"{_NONE}: the whole model is more than its memory; the check takes fewer layers there."]
    return "\n".join(lines)


def named(figure: Figure) -> str:
    """The name of a figure as the page of a check has it, and its unit, unless it ends in that or has none."""
    name = label(figure)
    return name if figure.unit in ("ratio", "share", *name.split()) else f"{name}, {figure.unit}"


def _figures(card: Gpu, parts: Sequence[Part]) -> Iterator[Figure]:
    peaks = datasheet(card, _DTYPE)
    if peaks is None:
        raise UsageError(
            f"the check runs in {_DTYPE}, of which the datasheet of {card.name} says nothing; give another"
        )
    known = Known(Size(), ceilings_of(card, _DTYPE), _DTYPE, card, peaks)
    for part in parts:
        if part.predicts:
            yield from with_range(import_module(part.target.partition(":")[0]).predicted, known)


def _cell(figure: Figure | None) -> str:
    return _NONE if figure is None or figure.predicted is None else figure.expected
