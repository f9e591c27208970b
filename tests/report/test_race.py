"""A race: when each token came, which prompt is shown, and what cannot be raced."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import runs
from support.runs import PIECES
from support.wording import wording

from specbench.analysis.read import read_run
from specbench.common import UsageError
from specbench.report.answers.race import lane, race


def test_each_token_comes_when_its_forward_ended(tmp_path: Path) -> None:
    read = runs.read_race(tmp_path)
    found = race(read.config, read.records, ["ar", "pld"], "p/0")
    ar, pld = found.lanes
    assert [arrival.at_s for arrival in ar.arrivals] == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5]
    assert [arrival.at_s for arrival in pld.arrivals] == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert [len(arrival.tokens) for arrival in pld.arrivals] == [1, 2, 2, 2, 1]
    assert "".join(token.text for arrival in pld.arrivals for token in arrival.tokens) == "".join(runs.TEXTS)
    assert found.end_s == 7.5
    assert found.result == "On this prompt pld at 1.75 times ar's speed, by seconds per token after the first."


def test_a_moment_counts_what_is_there(tmp_path: Path) -> None:
    read = runs.read_race(tmp_path)
    ar, pld = race(read.config, read.records, ["ar", "pld"], "p/0").lanes
    before, middle, after = pld.at(0.4), pld.at(2.5), pld.at(100)
    assert (before.tokens, before.forwards, before.tok_s, before.done) == (0, 0, None, False)
    assert (middle.tokens, middle.forwards, middle.tok_s, middle.done) == (5, 2, 2.0, False)
    assert (after.tokens, after.forwards, after.tok_s, after.done) == (8, 4, 7 / 4, True)
    assert ar.at(2.5).tokens == 3


def test_the_prompt_shown_is_the_one_most_like_all_of_them(tmp_path: Path) -> None:
    """Over all prompts pld is 1.5 times as fast: nearest to that is 1.75 of p/0, not the 3.5 of p/2."""
    read = runs.read_race(tmp_path)
    assert race(read.config, read.records, ["ar", "pld"], None).prompt == "p/0"
    assert race(read.config, read.records, ["pld", "ar"], None).prompt == "p/0"
    assert race(read.config, read.records[::-1], ["ar", "pld"], None).prompt == "p/0", "in any order of the records"
    assert race(read.config, read.records, ["ar", "pld"], "p/2").lanes[1].end_s == 2.5


def test_shared_steps_are_stretched_to_what_the_reader_waited(tmp_path: Path) -> None:
    read = runs.read_race(tmp_path, concurrency=2)
    mine = next(record for record in read.records if record.method == "pld")
    halved = mine.model_copy(update={"step_s": [0.5] * 4})
    assert [arrival.at_s for arrival in lane(halved).arrivals] == [0.5, 1.5, 2.5, 3.5, 4.5]
    (note,) = race(read.config, read.records, ["ar", "pld"], None).notes
    assert note.startswith("2 sequences ran at once")


@pytest.mark.parametrize(
    ("methods", "request_id"),
    [
        (["ar", "pdl"], None),
        (["ar"], None),
        (["ar", "ar"], None),
        (["ar", "pld"], "p/7"),
    ],
)
def test_what_cannot_be_raced(tmp_path: Path, methods: list[str], request_id: str | None) -> None:
    read = runs.read_race(tmp_path)
    with pytest.raises(UsageError) as refused:
        race(read.config, read.records, methods, request_id)
    assert wording(refused.value)


def test_prompts_that_only_one_answered_are_no_race(tmp_path: Path) -> None:
    read = runs.read_race(tmp_path)
    records = [r for r in read.records if r.method == "ar" or r.prompt_id == "p/1"]
    assert race(read.config, records, ["ar", "pld"], None).prompt == "p/1"
    with pytest.raises(UsageError, check=wording):
        race(read.config, [r for r in records if r.method == "ar"], ["ar", "pld"], None)


def test_a_committed_run_takes_the_seconds_that_it_took() -> None:
    """Step times are rounded and leave out the harness between steps; the lane ends within 2% of the latency."""
    read = read_run(PIECES["headline-gsm8k"])
    labels = [spec.label for spec in read.config.methods][:2]
    found = race(read.config, read.records, labels, None)
    for each in found.lanes:
        record = next(r for r in read.records if r.method == each.method and r.prompt_id == found.prompt)
        assert each.tokens == record.output_tokens
        assert each.end_s == pytest.approx(record.latency_s, rel=0.02)
        assert [len(a.tokens) for a in each.arrivals[1:]] == record.accepted_lengths


def test_steps_that_took_no_time_share_what_the_answer_took(tmp_path: Path) -> None:
    read = runs.read_race(tmp_path)
    mine = next(record for record in read.records if record.method == "pld")
    timeless = mine.model_copy(update={"step_s": [0.0] * 4})
    assert [arrival.at_s for arrival in lane(timeless).arrivals] == [0.5, 1.5, 2.5, 3.5, 4.5]


def test_of_several_answers_to_a_prompt_the_first_is_shown_and_that_is_said(tmp_path: Path) -> None:
    read = runs.read_race(tmp_path)
    later = [r.model_copy(update={"turn": 2, "step_s": [9.0] * r.target_forwards}) for r in read.records]
    found = race(read.config, [*later, *read.records, *later], ["ar", "pld"], "p/0")
    assert found.end_s == 7.5
    assert found.notes == ["only the first turn and repeat is shown"]
