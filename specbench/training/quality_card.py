"""Accuracy on a model card: results of ``specbench quality`` in ``card.json`` and README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from specbench.analysis import UNVERIFIED, Compared, Metric, Quality, compare_quality
from specbench.common import UsageError, read_json_object, validate
from specbench.models import CARD

TODO = "train again, or use a complete copy of the folder"


class _Card(BaseModel):
    """Fields that a model card needs so that it can be rewritten."""

    model_config = ConfigDict(extra="allow")

    method: str
    model: str
    texts: int
    answer_tokens: int
    steps: int
    options: dict[str, Any]
    quality: dict[str, Any] | None = None


def check_card(model: str) -> Path:
    """Return the folder of trained weights that MODEL names, checked before anything is loaded."""
    folder = Path(model).expanduser()
    if not (folder / CARD).is_file():
        raise UsageError(
            f"cannot write --card: {model} has no {CARD}; give a folder of specbench train (adapter or checkpoint) as "
            "the last MODEL"
        )
    validate(_Card, read_json_object(folder / CARD, TODO), folder / CARD, TODO)
    return folder


def on_card(found: Sequence[Quality]) -> dict[str, Any]:
    """Return the card's entry on quality as plain values: a row for each metric of each task."""
    first, mine = found[0], found[-1]
    rows = []
    known: dict[tuple[str, str, str], Compared] = {}
    theirs: dict[tuple[str, str, str], Metric] = {}
    if len(found) > 1:
        known = {(row.task, row.metric, row.filter): row for row in compare_quality(first, mine)[0]}
        theirs = {(task.task, each.metric, each.filter): each for task in first.tasks for each in task.metrics}
    for task in mine.tasks:
        for metric in task.metrics:
            key = (task.task, metric.metric, metric.filter)
            row = {
                "task": task.task,
                "version": task.version,
                "shots": task.shots,
                "documents": task.documents,
                "data": task.data,
                "revision": task.revision,
                "metric": metric.metric,
                "filter": metric.filter,
                "value": metric.value,
                "stderr": metric.stderr,
            }
            if compared := known.get(key):
                ends = compared.interval
                row["before"] = theirs[key].value
                row["difference"] = compared.value
                row["interval"] = [ends.low, ends.high] if ends else None
                row["found"] = compared.verdict
            rows.append(row)
    base = {"baseline": first.model.name, "baseline_fingerprint": first.model.fingerprint} if len(found) > 1 else {}
    weights = {"fingerprint": mine.model.fingerprint, "dtype": mine.model.dtype}
    return {"lm_eval": mine.lm_eval, **weights, "limit": mine.limit, "chat": mine.chat, **base, "rows": rows}


def section(made: Mapping[str, Any]) -> list[str]:
    """Return the README's lines on quality; empty if it was not measured."""
    found = made.get("quality")
    if not found:
        return []
    baseline = found.get("baseline")
    asked = ", prompted through its chat template" if found.get("chat") else ""
    lines = [
        f"Accuracy{asked}, measured by lm-eval {found['lm_eval']} (`specbench quality`, {found['dtype']}"
        + (f"; the first {found['limit']} documents of each task" if found.get("limit") else "")
        + "):",
        "",
        *_head(
            [
                *("task", "metric", "documents"),
                *([baseline] if baseline else []),
                "this model",
                *(["difference"] if baseline else []),
                "data",
            ]
        ),
    ]
    for row in found["rows"]:
        metric = row["metric"] if row["filter"] == "none" else f"{row['metric']} ({row['filter']})"
        error = "" if row["stderr"] is None else f" ± {row['stderr']:.3f}"
        cells = [f"{row['task']} v{row['version']}, {row['shots']} shots", metric, str(row["documents"])]
        if baseline:
            cells.append(_shown(row.get("before")))
        cells.append(f"{_shown(row['value'])}{error}")
        if baseline:
            cells.append(_difference(row))
        pinned = "revision unverified" if row["revision"] == UNVERIFIED else f"revision {row['revision']}"
        cells.append(f"{row['data']}, {pinned}")
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _head(columns: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _difference(row: Mapping[str, Any]) -> str:
    """Format the difference to the baseline with its interval and verdict; perplexities are compared by their ratio."""
    if row.get("difference") is None:
        return "–"
    ends = row.get("interval")
    interval = f" [{ends[0]:.3g}, {ends[1]:.3g}]" if ends else ""
    return f"{row['difference']:.3g}{interval}, {row['found']}"
