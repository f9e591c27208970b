"""Tables of ``specbench quality``: each model's figures, and the differences from the first model."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_uppercase

from specbench.analysis import (
    UNVERIFIED,
    Compared,
    GroupQuality,
    Metric,
    Quality,
    TaskQuality,
    compare_quality,
    metric_kind,
    model_names,
)
from specbench.report.document import Block, Cell, Column, Row, Table, Title, Words
from specbench.report.tables import cell

_LEGEND = (
    "± is lm-eval's standard error. Differences are paired by document, each with its own 95% interval over documents: "
    "in points for shares, as a ratio for perplexities. right: +documents that only this model and −that only A has "
    "right."
)


def quality_report(found: Sequence[Quality]) -> list[Block]:
    """The tables of several models; the first is the reference."""
    blocks: list[Block] = []
    for letter, name, each in zip(ascii_uppercase, model_names(found), found, strict=False):
        asked = [f"first {each.limit}"] if each.limit else []
        asked += ["chat"] if each.chat else []
        about = [f"{name} {each.model.dtype}", each.model.fingerprint[:12], f"lm-eval {each.lm_eval}", *asked]
        blocks.append(Title(letter, " · ".join(about)))
    blocks.append(_values(found))
    for letter, each in zip(ascii_uppercase[1:], found[1:], strict=False):
        rows, notes = compare_quality(found[0], each)
        if rows:
            blocks.append(_differences(f"{letter} against A", rows))
        if notes:
            blocks.append(Words([f"{letter}: {note}." for note in notes], "warning"))
    unverified = sorted({task.task for each in found for task in each.tasks if task.revision == UNVERIFIED})
    lines = [f"Tasks without a pinned revision of their data: {', '.join(unverified)}."] if unverified else []
    return [*blocks, Words([*lines, _LEGEND], "notes")]


def _values(found: Sequence[Quality]) -> Table:
    letters = list(ascii_uppercase[: len(found)]) if len(found) > 1 else ["value"]
    columns = [
        Column("task", "task", words=True), Column("metric", "metric", words=True), Column("documents", "n"),
        Column("shots", "shots"), *(Column(letter, letter, words=True) for letter in letters),
    ]  # fmt: skip
    rows: dict[tuple[str, ...], list[str]] = {}
    for at, each in enumerate(found):
        asked: list[TaskQuality | GroupQuality] = [*each.tasks, *each.groups]
        for one in asked:
            name, *counts = _head(one)
            for metric in one.metrics:
                key = (name, _named(metric.metric, metric.filter), *counts)
                rows.setdefault(key, [""] * len(found))[at] = _value(metric)
    body = [Row([Cell(text) for text in (*key, *values)]) for key, values in sorted(rows.items())]
    return Table("quality", "", columns, body)


def _head(one: TaskQuality | GroupQuality) -> tuple[str, str, str]:
    """Name with version, number of documents, and shots; a group has only a name."""
    if isinstance(one, GroupQuality):
        return f"{one.group} (group)", "", ""
    count = f"{one.documents}" if one.documents == one.of else f"{one.documents}/{one.of}"
    return f"{one.task} v{one.version}", count, str(one.shots)


def _named(metric: str, kind: str) -> str:
    """Name of a metric, with its filter if it has one."""
    return metric if kind == "none" else f"{metric} ({kind})"


def _value(metric: Metric) -> str:
    """A metric's value with its standard error."""
    if metric.value is None:
        return "–"
    share = metric_kind(metric) == "share" or metric.metric.startswith(("acc", "exact_match"))
    shown, error = (f"{metric.value:.1%}", ".1%") if share else (f"{metric.value:.4g}", ".2g")
    return shown if metric.stderr is None else f"{shown} ± {metric.stderr:{error}}"


def _differences(title: str, rows: Sequence[Compared]) -> Table:
    words = ("difference", "right", "found")
    columns = [
        Column("task", title, words=True), Column("documents", "n"), *(Column(word, word, words=True) for word in words)
    ]  # fmt: skip
    body = []
    for row in rows:
        right = "" if row.gained is None else f"+{row.gained} −{row.lost}"
        name = f"{row.task} {_named(row.metric, row.filter)}"
        body.append(Row([Cell(name), cell.count(row.documents), *map(Cell, (_difference(row), right, row.verdict))]))
    return Table("differences", "", columns, body)


def _difference(row: Compared) -> str:
    """The difference of two models, with its interval."""
    shown, times = ("+.1f", 100) if row.gained is not None else (".4g", 1)
    value = f"{times * row.value:{shown}}"
    if row.interval is None:
        return value
    return f"{value} [{times * row.interval.low:{shown}}, {times * row.interval.high:{shown}}]"
