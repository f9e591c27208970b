"""Speed over the place in an answer, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.runs import record

from specbench.analysis.positions import Window, forwards, spent, windows
from specbench.analysis.speedup import Pairs, over_positions


def test_windows_double_from_sixteen_on() -> None:
    assert windows(128) == [Window(0, 16), Window(16, 32), Window(32, 64), Window(64, 128)]
    assert windows(40) == [Window(0, 16), Window(16, 32), Window(32, 40)]
    assert windows(5) == [Window(0, 5)]
    assert windows(0) == []


def test_a_forward_on_both_sides_of_an_end_is_shared_out() -> None:
    one = record("pld", "p", tokens=21, forwards=2, decode_s=3.0).model_copy(
        update={"accepted_lengths": [12, 8], "step_s": [1.0, 2.0]}
    )
    assert spent(one, Window(0, 16), False) == (pytest.approx(1.0 + 2.0 * 4 / 8), 16)
    assert spent(one, Window(16, 32), False) == (pytest.approx(2.0 * 4 / 8), 4)
    assert forwards(one, Window(0, 16)) == pytest.approx(1.5)
    assert spent(one, Window(32, 64), False) == (0.0, 0)


def test_a_forward_that_kept_nothing_counts_where_it_stood() -> None:
    """As where the budget cut off all that a last forward brought."""
    one = record("pld", "p", tokens=9, forwards=2, decode_s=2.0).model_copy(update={"accepted_lengths": [8, 0]})
    assert spent(one, Window(0, 16), False) == (pytest.approx(2.0), 8)
    assert forwards(one, Window(0, 16)) == 2


def test_steps_without_times_share_the_answers_evenly_and_those_with_add_up_to_it() -> None:
    old = record("pld", "p", tokens=31, forwards=10, decode_s=5.0)
    assert spent(old, Window(0, 16), False)[0] == pytest.approx(0.5 * 16 / 3)
    rounded = old.model_copy(update={"step_s": [0.25] * 10})
    assert spent(rounded, Window(0, 30), False) == (pytest.approx(5.0), 30)


@given(
    kept=st.lists(st.integers(0, 20), min_size=1, max_size=30).filter(any),
    seconds=st.lists(st.floats(0.001, 1), min_size=30, max_size=30),
)
def test_windows_hold_every_second_and_every_token_once(kept: list[int], seconds: list[float]) -> None:
    while not kept[0]:  # no forward stands before the first token
        kept = kept[1:]
    steps = seconds[: len(kept)]
    whole = record("m", "p", tokens=1 + sum(kept), forwards=len(kept), decode_s=sum(steps)).model_copy(
        update={"accepted_lengths": kept, "step_s": steps}
    )
    parts = [spent(whole, window, False) for window in windows(sum(kept))]
    assert sum(tokens for _, tokens in parts) == sum(kept)
    assert sum(taken for taken, _ in parts) == pytest.approx(sum(steps))
    assert sum(forwards(whole, window) for window in windows(sum(kept))) == pytest.approx(len(kept))


def test_a_method_that_copies_the_beginning_is_fast_there_and_only_there() -> None:
    keys = [(f"p{at}", 0, 1) for at in range(8)]
    ar = {key: record("ar", key[0], tokens=49, forwards=48, decode_s=48.0) for key in keys}
    mine = {
        key: record("pld", key[0], tokens=49, forwards=36, decode_s=36.0).model_copy(
            update={"accepted_lengths": [4] * 4 + [1] * 32, "step_s": [1.0] * 36}
        )
        for key in keys
    }
    first, second, third = over_positions(Pairs.of(ar, mine, shared=False))
    assert [(at.start, at.end, at.prompts) for at in (first, second, third)] == [(0, 16, 8), (16, 32, 8), (32, 48, 8)]
    values = [at.speedup.value for at in (first, second, third) if at.speedup]
    assert values == pytest.approx([4.0, 1.0, 1.0])
    so_far = [at.so_far.value for at in (first, second, third) if at.so_far]
    assert so_far == pytest.approx([4.0, 32 / 20, 48 / 36])
    assert [at.tokens_per_forward for at in (first, second, third)] == pytest.approx([4.0, 1.0, 1.0])


def test_only_prompts_whose_answers_both_reach_a_window_count_there() -> None:
    ar = {("p0", 0, 1): record("ar", "p0", tokens=41, forwards=40), ("p1", 0, 1): record("ar", "p1", tokens=9)}
    mine = {key: value.model_copy(update={"method": "m"}) for key, value in ar.items()}
    assert [at.prompts for at in over_positions(Pairs.of(ar, mine, shared=False))] == [2, 1, 1]


def test_sequences_stepped_together_are_one_unit_and_as_many_prompts_as_they_were() -> None:
    ar = {(f"p{at}", 0, 1): record("ar", f"p{at}", tokens=9, segment=0) for at in range(3)}
    mine = {key: value.model_copy(update={"method": "m"}) for key, value in ar.items()}
    pairs = Pairs.of(ar, mine, shared=True)
    assert len(set(pairs.units)) == 1
    assert [at.prompts for at in over_positions(pairs)] == [3]
