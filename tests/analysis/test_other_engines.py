"""Rows of other engines in a summary: failed ones, other precisions, arrivals that are no forwards."""

from __future__ import annotations

from typing import Any

import pytest
from support import decoders
from support.asserting import known
from support.engines import PROMPTS, answer, engine_answers, engine_config, row_of, spec, summed
from support.wording import wording

from specbench.analysis.other_engines import other_engine, plain_of, same_precision
from specbench.analysis.positions import Window, spent
from specbench.report.tables.notes import notes
from specbench.report.tables.run_table import finding
from specbench.results.bandwidth import Bandwidth, ForwardBytes, Reading
from specbench.results.engine_facts import Engines
from specbench.results.summary_schema import Fastest

NINE = [1] * 9


def test_a_row_of_ours_has_nothing_of_another_engine() -> None:
    (ours,) = decoders.config(["ar"], 1).methods
    assert other_engine(ours, [ours], {}, Engines(), {}) is None
    assert plain_of(ours, [ours]) is None
    assert same_precision(ours, "bfloat16")


@pytest.mark.parametrize(
    ("options", "plain"),
    [({}, "e:ar"), ({"dtype": "bfloat16"}, "e:ar#2"), ({"url": True}, "e:ar#3"), ({"dtype": "float16"}, None)],
)
def test_speculation_is_held_against_plain_decoding_of_its_precision_and_address(
    options: dict[str, Any], plain: str | None
) -> None:
    plains = [spec("f:ar"), spec("e:ar"), spec("e:ar", "e:ar#2", dtype="bfloat16"), spec("e:ar", "e:ar#3", url=True)]
    mine = spec("e:ngram", **options)
    assert plain_of(mine, [mine, *plains]) == plain
    assert [plain_of(each, plains) for each in plains] == [None] * 4


def test_over_its_own_ar_is_of_the_row_at_its_own_precision() -> None:
    run = engine_config(spec("e:ar"), spec("e:ar", "e:ar#2", dtype="bfloat16"), spec("e:spec", dtype="bfloat16"))
    costs = {"ar": 8.0, "e:ar": 8.0, "e:ar#2": 4.0, "e:spec": 2.0}
    found = summed(run, [one for label, cost in costs.items() for one in engine_answers(label, NINE, cost)])
    own = known(known(row_of(found, "e:spec").other).over_own_ar)
    assert own.of == "e:ar#2"
    assert known(own.speedup).value == pytest.approx(2.0, rel=0.05)
    assert own.lossless is None


@pytest.mark.parametrize(("dtype", "same"), [("auto", True), ("float32", True), ("bfloat16", False)])
def test_auto_is_the_precision_of_the_run(dtype: str, same: bool) -> None:
    assert same_precision(spec("e:ar", dtype=dtype), "float32") is same
    assert same_precision(spec("e:ar"), "float32")


def test_neither_a_failed_row_nor_one_of_another_precision_is_the_fastest() -> None:
    run = engine_config(spec("dead:ar"), spec("half:ar", dtype="bfloat16"), spec("e:ar"), ours=("ar", "pld"))
    costs = {"ar": 8.0, "pld": 4.0, "dead:ar": 1.0, "half:ar": 1.0, "e:ar": 6.0}
    records = [one for label, cost in costs.items() for one in engine_answers(label, NINE, cost)]
    found = summed(run, records[:-1], engines=Engines(failed={"dead:ar": "it died", "e:ar": "so did it"}))
    assert found.complete, "what failed has no more to answer"
    assert known(found.fastest).method == "pld"
    assert known(found.fastest).among == 1
    both = summed(run, records, engines=Engines(failed={"dead:ar": "it died"}))
    assert known(both.fastest).method == "pld"
    assert known(both.fastest).among == 2
    text = finding(both)
    assert "dead:ar" not in text
    assert wording(text)


def test_rows_of_different_precisions_are_not_chosen_between() -> None:
    run = engine_config(spec("half:ar", dtype="bfloat16"))
    found = summed(run, [*engine_answers("ar", NINE, 8.0), *engine_answers("half:ar", NINE, 1.0)])
    assert row_of(found, "half:ar").speedup is not None
    assert found.fastest is None
    run = engine_config(spec("half:ar", dtype="bfloat16"), ours=("ar", "pld"))
    found = summed(run, [one for label in ("ar", "pld", "half:ar") for one in engine_answers(label, NINE, 8.0)])
    assert isinstance(found.fastest, Fastest)
    assert found.fastest.method == "pld"


def test_tokens_of_the_first_arrival_are_not_decoded() -> None:
    run = engine_config(spec("e:spec"))
    found = summed(run, [*engine_answers("ar", NINE, 8.0), *engine_answers("e:spec", [5, 2, 2], 8.0)])
    row = row_of(found, "e:spec")
    assert row.tokens_per_forward == 2.0
    assert known(row.tokens) == 9 * PROMPTS
    assert known(row.decode_tok_s) == pytest.approx(0.5, rel=0.03)
    assert known(row.speedup).value == pytest.approx(0.5, rel=0.05), "4 tokens in the time of 8"
    late = answer("e:spec", 0, [5, 2, 2], 8.0)
    assert [spent(late, Window(*ends), False) for ends in ((0, 4), (4, 8))] == [(0.0, 0), (8.0, 4)]


def test_arrivals_of_an_engine_that_counts_in_all_or_not_at_all_are_no_forwards() -> None:
    run = engine_config(spec("all:ar"), spec("none:ar"))
    joined = [1, 4, 4]
    records = [
        *engine_answers("ar", NINE, 8.0), *engine_answers("all:ar", joined, 8.0, forwards=8),
        *engine_answers("none:ar", joined, 8.0, forwards=0),
    ]  # fmt: skip
    found = summed(run, records)
    assert row_of(found, "all:ar").tokens_per_forward == 1.0
    assert row_of(found, "all:ar").tokens_per_forward_with_prefill == 1.0
    none = row_of(found, "none:ar")
    assert (none.tokens_per_forward, none.tokens_per_forward_with_prefill, none.step_s) == (None, None, None)
    assert known(none.speedup).value == pytest.approx(1.0, rel=0.05)
    for label in ("all:ar", "none:ar"):
        assert {at.tokens_per_forward for at in row_of(found, label).positions} == {None}
    written = {**run.model_dump(), "environment": {}}
    (text,) = [line for line in notes(written, found) if line.startswith("none:ar:")]
    assert "TPF" not in text


def test_context_of_an_engine_that_counts_in_all_is_that_of_its_arrivals() -> None:
    memory = Bandwidth(
        forwards={"e:ar": ForwardBytes(contexts=[0, 100], nbytes=[1, 101])},
        readings=[Reading(segment=0, threads=1, bytes_per_s=1.0)],
    )
    # After a prompt of 5, and 0, then 4 kept tokens: 7 in the mean, a byte each and one more. So it is in
    # each of 8 forwards over 8 s.
    assert memory.share("e:ar", [answer("e:ar", 0, [1, 4, 4], 8.0, forwards=8)]) == pytest.approx(8.0)
    assert memory.share("e:ar", [answer("e:ar", 0, [1, 4, 4], 8.0)]) == pytest.approx(8.0 * 2 / 8)
    # Three more came with the first arrival.
    assert memory.share("e:ar", [answer("e:ar", 0, [4, 4, 4], 8.0)]) == pytest.approx(11.0 * 2 / 8)
