"""lm-eval results of a model, and paired comparison of two models on the same documents.

Metrics keep the value of each document, so that any two files can be compared in pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from specbench.analysis.stats.interval import Interval
from specbench.analysis.stats.means import paired_mean
from specbench.analysis.stats.proportions import difference_verdict, paired_difference
from specbench.common import UsageError, in_64_bits, read_json_object, schema_version, validate
from specbench.results import Count, Figure, ModelSpec, Record

#: Schema version of the file.
SCHEMA = 1

#: Value of ``revision`` if the revision of a task's data is unknown.
UNVERIFIED = "unverified"

_SEED = 0
_TODO = "repeat specbench quality"

#: How a metric follows from its documents: share of right ones, mean, or exp or log2 of minus the mean log-likelihood.
Kind = Literal["share", "mean", "perplexity", "bits"]

_PERPLEXITIES: dict[str, Kind] = {
    "perplexity": "perplexity",
    "word_perplexity": "perplexity",
    "byte_perplexity": "perplexity",
    "bits_per_byte": "bits",
}


class Metric(Record):
    """A metric of a task, or of a group of tasks."""

    metric: str = Field(description="lm-eval's name: acc, acc_norm, exact_match, word_perplexity")
    filter: str = Field(description="lm-eval's filter that extracted the answer from the text; 'none' without one")
    value: float | None = Field(description="None: not a finite number")
    stderr: float | None = Field(description="lm-eval's standard error; None without one")
    higher_is_better: bool | None
    items: list[Figure] | None = Field(
        default=None, description="value of each document; None if a document has no number"
    )
    weights: list[Figure] | None = Field(default=None, description="bytes or words of each document, for perplexities")


class TaskQuality(Record):
    """A model's results on a task of lm-eval."""

    task: str
    version: str = Field(description="version of the task in lm-eval")
    shots: Count
    documents: Count = Field(description="number of evaluated documents")
    of: Count = Field(description="number of documents in the task")
    data: str = Field(description="name of the data set, without local folders")
    revision: str = Field(description=f"revision of the data if the task pins one, otherwise {UNVERIFIED}")
    documents_hash: str = Field(description="hash of the documents, equal for the same documents in the same order")
    task_hash: str = Field(description="lm-eval's hash of documents, prompts and targets")
    metrics: list[Metric]


class GroupQuality(Record):
    """A group of tasks with lm-eval's combined metrics."""

    group: str
    metrics: list[Metric]


class Quality(Record):
    """Quality of one model, the content of the file written by ``specbench quality``."""

    schema_version: int = SCHEMA
    model: ModelSpec
    lm_eval: str = Field(description="version of lm-eval")
    limit: Count | None = Field(description="only the first documents of each task; None: all")
    chat: bool = Field(description="prompts use the model's chat template")
    max_length: Count | None = Field(default=None, description="most tokens per text; None: the model's own limit")
    dated: str | None = Field(
        default=None,
        description="local time that the chat template wrote into prompts; None: the template does not use it",
    )
    tasks: list[TaskQuality]
    groups: list[GroupQuality]


def read_quality(path: Path) -> Quality:
    """Read a file written by ``specbench quality``."""
    content = read_json_object(path, _TODO)
    schema_version(content, path, SCHEMA, _TODO)
    in_64_bits(content, path, _TODO)
    found = validate(Quality, content, path, _TODO)
    for task in found.tasks:
        for metric in task.metrics:
            for column in (metric.items, metric.weights):
                if column is not None and len(column) != task.documents:
                    raise UsageError(
                        f"{path} is damaged ({task.task}: {len(column)} values for {task.documents} documents); {_TODO}"
                    )
    return found


def metric_kind(metric: Metric) -> Kind | None:
    """How a metric's value follows from its documents; None if no known way gives its value."""
    items, value = metric.items, metric.value
    if not items or value is None:
        return None
    weights = metric.weights or [1.0] * len(items)
    if min(weights) <= 0:
        return None
    mean = math.fsum(items) / math.fsum(weights)
    named = _PERPLEXITIES.get(metric.metric)
    if named is not None and _close(_of_log(named, -mean), value):
        return named
    if metric.weights is None and _close(mean, value):
        return "share" if set(items) <= {0.0, 1.0} else "mean"
    return None


@dataclass(frozen=True)
class Compared:
    """A metric of two models on the same documents.

    ``value`` is the second minus the first, or their ratio for perplexities; ``gained`` and ``lost`` count documents
    that only the second or only the first has right (shares only); ``p_value`` is McNemar's test of these.
    """

    task: str
    metric: str
    filter: str
    documents: int
    value: float
    interval: Interval | None
    gained: int | None
    lost: int | None
    p_value: float | None
    verdict: str


def compare_quality(first: Quality, second: Quality) -> tuple[list[Compared], list[str]]:
    """Compare the second model with the first; return also a sentence for each task that cannot be compared."""
    theirs = {task.task: task for task in first.tasks}
    rows, notes = list[Compared](), list[str]()
    for task in second.tasks:
        other = theirs.get(task.task)
        if why := _apart(first, second, other, task):
            notes.append(f"{task.task} is not compared: {why}")
            continue
        assert other is not None
        known = {(metric.metric, metric.filter): metric for metric in other.metrics}
        for metric in task.metrics:
            reference = known.get((metric.metric, metric.filter))
            if reference is not None and (row := _compared(task, reference, metric)):
                rows.append(row)
        if task.task_hash != other.task_hash:
            whose = ", from each model's chat template" if first.chat else ""
            times = [each.dated for each in (first, second) if each.dated]
            whose += f", which contain the time: {' and '.join(times)}" if times else ""
            notes.append(f"{task.task}: the same documents had different prompts{whose}")
    return rows, notes


def _apart(first: Quality, second: Quality, other: TaskQuality | None, task: TaskQuality) -> str:
    """Why two models' results on a task cannot be compared; empty if they can."""
    if other is None:
        return f"{first.model.name} has no result for it"
    for what, mine, its in (
        ("version", task.version, other.version),
        ("number of examples", task.shots, other.shots),
        ("lm-eval", second.lm_eval, first.lm_eval),
        ("chat template", second.chat, first.chat),
        ("--max-length", *(each.max_length or "the model's" for each in (second, first))),
    ):
        if mine != its:
            return f"different {what}, {mine} and {its}"
    if task.documents_hash != other.documents_hash:
        return "different documents"
    return ""


def _compared(task: TaskQuality, first: Metric, second: Metric) -> Compared | None:
    kinds = {metric_kind(first), metric_kind(second)}
    if None in kinds or first.items is None or second.items is None or first.weights != second.weights:
        return None
    named = (task.task, second.metric, second.filter, task.documents)
    if kinds == {"share"}:
        mine, other = ([value == 1.0 for value in metric.items or ()] for metric in (second, first))
        share = paired_difference(mine, other, seed=_SEED)
        counts = (share.gained, share.lost, share.p_value)
        verdict = "too few documents" if share.interval is None else difference_verdict(share)
        return Compared(*named, share.value, share.interval, *counts, verdict)
    found = paired_mean(second.items, first.items, seed=_SEED, weights=second.weights)
    kind: Kind = "perplexity" if "perplexity" in kinds else "bits" if "bits" in kinds else "mean"
    value, interval = found.value, found.interval
    if kind != "mean":  # these fall when the log-likelihood rises
        value = _of_log(kind, -value)
        if interval is not None:
            low, high = _of_log(kind, -interval.high), _of_log(kind, -interval.low)
            interval = Interval(low, high, interval.level) if math.isfinite(high) else None
    if not math.isfinite(value):
        return None
    same = 1.0 if kind == "perplexity" else 0.0
    return Compared(*named, value, interval, None, None, None, _verdict(interval, same))


def _verdict(interval: Interval | None, same: float) -> str:
    if interval is None:
        return "too few documents"
    return "higher" if interval.low > same else "lower" if interval.high < same else "no difference shown"


def _of_log(kind: Kind, nats: float) -> float:
    """Convert nats to a perplexity or to bits."""
    if kind == "bits":
        return nats / math.log(2)
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


def _close(found: float, value: float) -> bool:
    return math.isclose(found, value, rel_tol=1e-6, abs_tol=1e-9)


def quality_json(first: Quality, second: Quality) -> dict[str, object]:
    """The comparison of two models as JSON-ready data."""
    rows, notes = compare_quality(first, second)
    return {
        "first": first.model.name,
        "second": second.model.name,
        "rows": [
            {**vars(row), "interval": None if row.interval is None else [row.interval.low, row.interval.high]}
            for row in rows
        ],
        "notes": notes,
    }


def model_names(found: Sequence[Quality]) -> list[str]:
    """A unique name for each model: its name, with its fingerprint if several models have the same name."""
    names = [each.model.name for each in found]
    return [
        name if names.count(name) == 1 else f"{name} ({each.model.fingerprint[:8]})"
        for name, each in zip(names, found, strict=True)
    ]
