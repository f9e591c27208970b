"""Quality: what lm-eval found of a model, and the difference of two models on the same documents.

A metric keeps its value for each document, so that any two such files are compared in pairs, whenever they were made.
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

#: Of the file.
SCHEMA = 1

#: Where nothing says which revision of its data a task had.
UNVERIFIED = "unverified"

_SEED = 0
_TODO = "repeat specbench quality"

#: What a metric is of its documents: a share of right ones, a mean, or exp or log2 of minus a mean log-likelihood.
Kind = Literal["share", "mean", "perplexity", "bits"]

_PERPLEXITIES: dict[str, Kind] = {
    "perplexity": "perplexity",
    "word_perplexity": "perplexity",
    "byte_perplexity": "perplexity",
    "bits_per_byte": "bits",
}


class Metric(Record):
    """A metric of a task, or of a group of tasks."""

    metric: str = Field(description="lm-eval's name of it: acc, acc_norm, exact_match, word_perplexity")
    filter: str = Field(description="what made an answer of the text before it was judged; none where nothing did")
    value: float | None = Field(description="None: it is no number, or not finite")
    stderr: float | None = Field(description="lm-eval's; None where it has none")
    higher_is_better: bool | None
    items: list[Figure] | None = Field(
        default=None, description="of each document; None where a document has no number"
    )
    weights: list[Figure] | None = Field(default=None, description="bytes or words of each document, of a perplexity")


class TaskQuality(Record):
    """A task of lm-eval, and what a model made of it."""

    task: str
    version: str = Field(description="the task's, as lm-eval has it")
    shots: Count
    documents: Count = Field(description="that were asked")
    of: Count = Field(description="that there are")
    data: str = Field(description="name of the data set, without folders of this machine")
    revision: str = Field(description=f"of the data, where the task pins one; else {UNVERIFIED}")
    documents_hash: str = Field(description="of the documents: equal for the same ones in the same order")
    task_hash: str = Field(description="lm-eval's: of documents, prompts and targets")
    metrics: list[Metric]


class GroupQuality(Record):
    """A group of tasks that lm-eval sums up."""

    group: str
    metrics: list[Metric]


class Quality(Record):
    """Quality of one model: the file that ``specbench quality`` writes."""

    schema_version: int = SCHEMA
    model: ModelSpec
    lm_eval: str = Field(description="its version")
    limit: Count | None = Field(description="documents of each task, the first ones; None is all")
    chat: bool = Field(description="asked through the model's chat template")
    max_length: Count | None = Field(default=None, description="tokens of a text at most; None is the model's own")
    dated: str | None = Field(
        default=None, description="local time that the chat template wrote into prompts; None: it asks for none"
    )
    tasks: list[TaskQuality]
    groups: list[GroupQuality]


def read_quality(path: Path) -> Quality:
    """Read such a file."""
    content = read_json_object(path, _TODO)
    schema_version(content, path, SCHEMA, _TODO)
    in_64_bits(content, path, _TODO)
    found = validate(Quality, content, path, _TODO)
    for task in found.tasks:
        for metric in task.metrics:
            for column in (metric.items, metric.weights):
                if column is not None and len(column) != task.documents:
                    raise UsageError(
                        f"{path} is damaged ({task.task}: {len(column)} values of {task.documents} documents); {_TODO}"
                    )
    return found


def metric_kind(metric: Metric) -> Kind | None:
    """What a metric is of its documents; None where its value does not follow from them in a way known here."""
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

    ``value`` is by how much the second is above the first, of perplexities their ratio; ``gained`` and ``lost`` count
    documents that only the second or only the first has right (shares only), ``p_value`` is McNemar's test of these.
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
    """Compare the second model with the first; also a sentence on each task that cannot be compared."""
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
            twin = known.get((metric.metric, metric.filter))
            if twin is not None and (row := _compared(task, twin, metric)):
                rows.append(row)
        if task.task_hash != other.task_hash:
            whose = ", those of each chat template" if first.chat else ""
            times = [each.dated for each in (first, second) if each.dated]
            whose += f", with the time in them: {' and '.join(times)}" if times else ""
            notes.append(f"{task.task}: the same documents were asked in other words{whose}")
    return rows, notes


def _apart(first: Quality, second: Quality, other: TaskQuality | None, task: TaskQuality) -> str:
    """Why a task of two models cannot be compared; empty where it can."""
    if other is None:
        return f"{first.model.name} was not asked it"
    for what, mine, its in (
        ("version", task.version, other.version),
        ("number of examples", task.shots, other.shots),
        ("lm-eval", second.lm_eval, first.lm_eval),
        ("chat template", second.chat, first.chat),
        ("--max-length", *(each.max_length or "the model's" for each in (second, first))),
    ):
        if mine != its:
            return f"another {what}, {mine} and {its}"
    if task.documents_hash != other.documents_hash:
        return "other documents"
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
    if kind != "mean":  # the larger the log-likelihood, the smaller these
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
    """A perplexity, or bits, of so many nats."""
    if kind == "bits":
        return nats / math.log(2)
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


def _close(found: float, said: float) -> bool:
    return math.isclose(found, said, rel_tol=1e-6, abs_tol=1e-9)


def quality_json(first: Quality, second: Quality) -> dict[str, object]:
    """The comparison of two models as plain values."""
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
    """What each model is called beside the others: its name, and its fingerprint where another is called so too."""
    names = [each.model.name for each in found]
    return [
        name if names.count(name) == 1 else f"{name} ({each.model.fingerprint[:8]})"
        for name, each in zip(names, found, strict=True)
    ]
