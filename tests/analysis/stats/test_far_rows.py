"""Rows far slower than the best are ruled out only if every resample has a lead for them."""

from __future__ import annotations

from specbench.analysis.stats import Paired, many

PROMPTS = 30


def row(speed: float, answered: int = PROMPTS, every: int = 3) -> Paired:
    """A row ``speed`` times as fast as AR, a little less on most prompts; only so many of them have an answer."""
    tokens = [1.0 if prompt < answered else 0.0 for prompt in range(PROMPTS)]
    seconds = [(1 + prompt % every / 50) / speed for prompt in range(PROMPTS)]
    return Paired(([1.0] * PROMPTS, [1.0] * PROMPTS), (seconds, tokens), list(range(PROMPTS)))


def test_a_best_row_that_a_resample_can_leave_without_an_answer_rules_out_no_far_one() -> None:
    slow = {f"slow {number}": row(0.1) for number in range(40)}
    found = many({"best": row(40.0, 6, 4), **slow}, seed=0, draws=500)
    assert (found.best, found.conclusive) == ("best", True)
    assert len(found.as_good) == len(slow) + 1
    sure = many({"best": row(40.0, every=4), **slow}, seed=0, draws=500)
    assert sure.as_good == ("best",)


def test_rows_that_tell_nothing_hide_no_row_that_is_ruled_out() -> None:
    """Rows that a resample can leave without tokens are not compared with others."""
    unsure = {f"unsure {number}": row(1.5, 6, 5 + number) for number in range(3)}
    found = many({"fast": row(2.0), "slow": row(1.0, every=4), **unsure}, seed=0, draws=500)
    assert found.conclusive
    assert set(found.as_good) == {"fast", *unsure}
