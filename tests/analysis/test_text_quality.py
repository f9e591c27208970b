"""Closing loops, distinct n-grams and agreement, on token ids made up and on those of a run that is committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import pytest
from support.asserting import known
from support.runs import answers, run_config

from specbench.analysis.summary import RunContents, summarise
from specbench.analysis.text_quality import (
    LEAST,
    LONGEST,
    ROUNDS,
    Loop,
    agreement,
    closing_loop,
    degeneration,
    distinct,
    loops_at_its_end,
)
from specbench.results.request_schema import RequestRecord
from specbench.results.summary_schema import RunSummary, TextFigures


def texts(summary: RunSummary) -> dict[str, TextFigures]:
    return {row.method: known(row.text) for row in summary.rows}


def test_rounds_up_to_the_end_are_a_loop_wherever_the_last_is_broken_off() -> None:
    start = [90, 91, 92]
    for circle, rest in product(([7], [1, 2], [5, 6, 7, 5], list(range(40))), range(4)):
        rounds = ROUNDS + LEAST // len(circle)
        ids = [*start, *circle * rounds, *circle[: rest % len(circle)]]
        assert closing_loop(ids) == Loop(len(start), len(circle))
        assert closing_loop([*ids, 93]) is None, "what goes on is no loop at the end"


def test_short_loops_and_few_rounds_end_sound_texts_too() -> None:
    assert closing_loop([9, *[0] * (LEAST - 1)]) is None
    assert closing_loop([9, *[0] * LEAST]) == Loop(1, 1)
    assert closing_loop(list(range(LEAST)) * (ROUNDS - 1)) is None
    assert closing_loop(list(range(LEAST)) * ROUNDS) == Loop(0, LEAST)
    assert closing_loop([*range(LONGEST + 1)] * 9) is None, "a round longer than looked for"
    assert closing_loop([]) is None


def test_the_longest_loop_counts_not_that_of_the_shortest_round() -> None:
    # Its last three tokens are a loop of one token, of too few; all of it one of five tokens.
    assert closing_loop([8, *[1, 2, 3, 3, 3] * 5]) == Loop(1, 5)


def test_distinct_n_grams_are_a_share_of_all_n_grams() -> None:
    assert distinct([1, 2, 1, 2, 1], 1) == 2 / 5
    assert distinct([1, 2, 1, 2, 1], 2) == 2 / 4
    assert distinct([1, 2, 1, 2, 1], 4) == 2 / 2
    assert distinct([1, 2, 3], 4) is None
    found = degeneration([([5] * 20, 20), ([1, 2, 3], 3)])
    assert (found.looping, found.share) == (1, 20 / 23)
    assert found.distinct == {1: (1 / 20 + 1) / 2, 2: (1 / 19 + 1) / 2, 4: 1 / 17}, "too short for four: left out"
    assert degeneration([]).share is None


def test_positions_that_only_one_answer_has_do_not_agree() -> None:
    found = known(agreement([([1, 2, 3, 4], [1, 2, 9, 4, 5, 6]), ([7], [7])]))
    assert (found.share, found.prefix_tokens) == ((3 + 1) / (6 + 1), (2 + 1) / 2)
    assert agreement([]) is None
    assert agreement([([], [])]) is None


def test_a_loop_that_was_stopped_is_a_loop(honest: RequestRecord) -> None:
    looping = honest.model_copy(update={"output_ids": [5] * 24 + [0], "finish_reason": "stop"})
    assert loops_at_its_end(looping)
    assert not loops_at_its_end(looping.model_copy(update={"finish_reason": "length"})), "its last token is a text's"
    assert not loops_at_its_end(honest)


@pytest.fixture
def honest() -> RequestRecord:
    return answers("jf", 1, decode_s=1.0)[0]


def degenerate(at: int, of: Sequence[int], ids: Sequence[int] = tuple(range(25))) -> list[int]:
    """The ids of an answer; to prompts of ``of`` the end of them is a loop."""
    return [*ids[:5], *[2] * 20] if at in of else list(ids)


def planted(looping: Mapping[str, Sequence[int]], prompts: int = 8) -> RunSummary:
    """AR, and a method four times as fast where its answer loops and as fast elsewhere; prompts that loop, by row."""
    records = [
        *answers("ar", prompts, decode_s=1.0, output_ids=lambda at: degenerate(at, looping.get("ar", ()))),
        *answers("jf", prompts, decode_s=1.0, target_forwards=24, output_ids=lambda at: degenerate(at, looping["jf"])),
    ]
    records = [
        one.model_copy(update={"decode_s": one.decode_s / 4, "target_forwards": 6, "accepted_lengths": [4] * 6})
        if one.method == "jf" and int(one.prompt_id[2:]) in looping["jf"]
        else one
        for one in records
    ]
    return summarise(RunContents(run_config(["jf"], prompts), records))


def test_a_planted_loop_is_called_so_and_honest_answers_are_not() -> None:
    found = texts(planted({"jf": [0, 3]}))
    assert (found["jf"].looping, found["jf"].loop_share) == (2, 2 * 20 / (8 * 25))
    assert known(found["jf"].distinct_4) < known(found["ar"].distinct_4) == 1
    assert known(found["jf"].agreement) == pytest.approx((6 * 25 + 2 * 5) / (8 * 25))
    assert found["jf"].common_prefix_tokens == (6 * 25 + 2 * 5) / 8
    ar = found["ar"]
    assert (ar.looping, ar.loop_share, ar.agreement, ar.without_loops) == (0, 0, None, None)
    honest = texts(planted({"jf": []}))["jf"]
    assert (honest.looping, honest.agreement, honest.without_loops) == (0, 1, None)


def test_prompts_are_dropped_from_both_sides_alike() -> None:
    (_, row) = planted({"jf": [0, 3], "ar": [5]}).rows
    found = known(known(row.text).without_loops)
    assert (found.prompts, found.dropped) == (5, 3)
    # Elsewhere the method is as fast as AR, and one token a forward: nothing else may be left of it.
    assert known(found.speedup).value == pytest.approx(1)
    assert found.tokens_per_forward == pytest.approx(1)
    assert known(row.speedup).value > 1.2
    assert known(found.speedup).verdict == "too few prompts"
    assert known(found.speedup).interval is None


def test_nothing_is_left_where_every_prompt_loops() -> None:
    (_, row) = planted({"jf": range(8)}).rows
    found = known(known(row.text).without_loops)
    assert (found.prompts, found.dropped, found.speedup, found.tokens_per_forward) == (0, 8, None, None)


def test_simulated_acceptance_has_no_text() -> None:
    records = [*answers("ar", 2, decode_s=1.0), *answers("jf", 2, decode_s=1.0)]
    ar, jf = summarise(RunContents(run_config(["jf"], 2, lot=["jf"]), records)).rows
    assert jf.text is None
    assert ar.text is not None


def test_later_turns_follow_other_answers_and_are_not_compared() -> None:
    first = [*answers("ar", 2, decode_s=1.0), *answers("jf", 2, decode_s=1.0)]
    later = [
        one.model_copy(update={"turn": 2, "request_id": f"{one.request_id}|2", "output_ids": [at] * 25})
        for at, one in enumerate(first)
    ]
    (_, row) = summarise(RunContents(run_config(["jf"], 2), [*first, *later])).rows
    assert known(row.text).agreement == 1
