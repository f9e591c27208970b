"""Quality of two models, compared document by document, and what is not compared."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from support.wording import wording

from specbench.analysis.model_quality import Metric, Quality, TaskQuality, compare_quality, metric_kind, read_quality
from specbench.common import UsageError
from specbench.report.document import Table
from specbench.report.tables.model_quality import quality_report
from specbench.results.schema import ModelSpec

N = 20
LENGTHS = [10.0 + 7 * (at % 5) for at in range(N)]


def model(name: str = "base", fingerprint: str = "0" * 64) -> ModelSpec:
    return ModelSpec(
        name=name, source=name, revision=None, fingerprint=fingerprint, dtype="float32", device="cpu", parameters=1,
        weight_bytes=4, dummy=False,
    )  # fmt: skip


def metric(name: str, items: list[float] | None, value: float | None, **more: Any) -> Metric:
    return Metric(metric=name, filter="none", value=value, stderr=None, higher_is_better=True, items=items, **more)


def share(right: int) -> Metric:
    return metric("acc", [1.0] * right + [0.0] * (N - right), right / N)


def perplexity(name: str, nats: float) -> Metric:
    """Of texts each of whose bytes costs so much, up to what is particular about a text."""
    items = [-length * nats * (1 + 0.01 * (at % 3)) for at, length in enumerate(LENGTHS)]
    mean = -math.fsum(items) / math.fsum(LENGTHS)
    value = mean / math.log(2) if name == "bits_per_byte" else math.exp(mean)
    return metric(name, items, value, weights=LENGTHS)


def task(*metrics: Metric, **changes: Any) -> TaskQuality:
    fields: dict[str, Any] = {
        "task": "made", "version": "1.0", "shots": 0, "documents": N, "of": N, "data": "json", "revision": "unverified",
        "documents_hash": "d", "task_hash": "t", "metrics": list(metrics),
    }  # fmt: skip
    return TaskQuality(**{**fields, **changes})


def quality(*tasks: TaskQuality, **changes: Any) -> Quality:
    fields = {"model": model(), "lm_eval": "0.4.13", "limit": None, "chat": False, "tasks": list(tasks), "groups": []}
    return Quality(**{**fields, **changes})


def test_right_answers_are_compared_in_pairs() -> None:
    (row,), notes = compare_quality(quality(task(share(5))), quality(task(share(15))))
    assert (row.value, row.gained, row.lost, row.verdict, notes) == (0.5, 10, 0, "more right", [])
    assert row.p_value == pytest.approx(2 / 2**10)
    assert row.interval is not None
    assert 0 < row.interval.low < 0.5 < row.interval.high
    (row,), _ = compare_quality(quality(task(share(15))), quality(task(share(15))))
    assert (row.value, row.verdict) == (0.0, "no difference shown")


def test_the_tables_show_shares_in_percent_and_their_difference_in_points() -> None:
    pair = [quality(task(metric("pass", [1.0] * right + [0.0] * (N - right), right / N))) for right in (5, 15)]
    tables = {block.name: block for block in quality_report(pair) if isinstance(block, Table)}
    (values,), (differences,) = tables["quality"].rows, tables["differences"].rows
    assert [cell.text for cell in values.cells[-2:]] == ["25.0%", "75.0%"]
    assert re.fullmatch(r"\+50\.0 \[\+\d\d\.\d, \+\d\d\.\d\]", differences.cells[2].text)


def test_perplexities_are_a_ratio_and_bits_a_difference() -> None:
    names = ("word_perplexity", "byte_perplexity", "bits_per_byte")
    first, second = (quality(task(*(perplexity(name, nats) for name in names))) for nats in (1.0, 0.8))
    rows, _ = compare_quality(first, second)
    for row, mine, its in zip(rows, second.tasks[0].metrics, first.tasks[0].metrics, strict=True):
        assert mine.value is not None
        assert its.value is not None
        expected = mine.value - its.value if row.metric == "bits_per_byte" else mine.value / its.value
        assert row.value == pytest.approx(expected, rel=1e-9)
        assert row.interval is not None
        assert row.interval.low < row.value < row.interval.high
        assert (row.verdict, row.p_value) == ("lower", None)
    back, _ = compare_quality(second, first)
    assert [row.verdict for row in back] == ["higher"] * 3
    assert back[0].value == pytest.approx(1 / rows[0].value)


def test_what_a_metric_is_follows_from_its_documents() -> None:
    assert metric_kind(share(3)) == "share"
    assert metric_kind(metric("f1", [0.5, 1.0], 0.75)) == "mean"
    assert metric_kind(metric("f1", [0.5, 1.0], 0.8)) is None, "an aggregation that is no mean"
    assert metric_kind(metric("mcc", None, 0.8)) is None
    assert metric_kind(metric("perplexity", [-1.0, -3.0], math.exp(2.0))) == "perplexity"
    assert metric_kind(metric("word_perplexity", [-1.0], None, weights=[2.0])) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": "2.0"}, "version, 2.0 and 1.0"),
        ({"shots": 5}, "number of examples, 5 and 0"),
        ({"documents_hash": "e"}, "different documents"),
        ({"task": "else"}, "base has no result for it"),
    ],
)
def test_tasks_that_are_not_the_same_are_not_compared(changes: dict[str, Any], words: str) -> None:
    rows, (note,) = compare_quality(quality(task(share(5))), quality(task(share(15), **changes)))
    assert rows == []
    assert words in note


def test_other_prompts_for_the_same_documents_are_compared_and_said() -> None:
    rows, (note,) = compare_quality(quality(task(share(5))), quality(task(share(5), task_hash="u")))
    assert len(rows) == 1
    assert note.endswith("different prompts"), "without a chat template"
    first, second = (quality(task(share(5), task_hash=hash_), chat=True) for hash_ in "tu")
    assert compare_quality(first, second)[1][0].endswith("from each model's chat template")


def test_texts_cut_at_another_length_are_not_compared() -> None:
    rows, (note,) = compare_quality(quality(task(share(5))), quality(task(share(15)), max_length=64))
    assert rows == []
    assert wording(note)
    assert len(compare_quality(*[quality(task(share(5)), max_length=64)] * 2)[0]) == 1


def test_few_documents_have_a_difference_and_no_verdict() -> None:
    few = [quality(task(metric("acc", [0.0, right], right / 2), documents=2, of=2)) for right in (0.0, 1.0)]
    (row,), _ = compare_quality(*few)
    assert (row.value, row.interval, row.verdict) == (0.5, None, "too few documents")


def test_a_file_reads_back_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    file, made = tmp_path / "q.json", quality(task(share(5), perplexity("word_perplexity", 1.0)))
    file.write_text(json.dumps(made.model_dump(mode="json")))
    assert read_quality(file) == made
    content = json.loads(file.read_text())
    content["tasks"][0]["metrics"][0]["items"].pop()
    file.write_text(json.dumps(content))
    with pytest.raises(UsageError, check=wording):
        read_quality(file)
    content["tasks"][0]["metrics"][0]["items"].append(1e308)  # a sum of them is infinite
    file.write_text(json.dumps(content))
    with pytest.raises(UsageError, check=wording):
        read_quality(file)
    file.write_text(json.dumps({**content, "schema_version": 9}))
    with pytest.raises(UsageError, check=wording):
        read_quality(file)
