"""Noise levels, and the states that are nearest to them."""

from __future__ import annotations

import random

from specbench.methods.jf.schedule import Schedule, nearest, noise_ratio


def test_levels_end_before_one_in_the_post_and_at_one_in_the_code() -> None:
    assert Schedule(4).levels == [0, 1 / 4, 2 / 4, 3 / 4]
    assert Schedule(5, ends="closed").levels == [0, 1 / 4, 2 / 4, 3 / 4, 1]
    assert Schedule(1).levels == Schedule(1, ends="closed").levels == [0]


def test_two_measures_of_noise() -> None:
    fixed = list(map(ord, "abcd"))
    for state, divergence, unconverged in (
        ("abcd", 0, 0), ("abxd", 2 / 4, 1 / 4), ("axcx", 3 / 4, 2 / 4), ("xbcd", 1, 1 / 4), ("abcx", 1 / 4, 1 / 4),
    ):  # fmt: skip
        ids = list(map(ord, state))
        assert noise_ratio(ids, fixed, "divergence") == divergence
        assert noise_ratio(ids, fixed, "unconverged") == unconverged


def test_the_first_of_equally_near_states() -> None:
    assert nearest([1, 0.75, 0.25, 0], 0.5) == 1
    assert nearest([0.5, 0.5, 0], 0.5) == 0
    assert nearest([1, 0.5, 0], 0) == 2


#: Five blocks of n = 4 whose states have noise 1, 3/4, 2/4, 1/4, 0.
BLOCKS = [[[9] * k + [1] * (4 - k) for k in (4, 3, 2, 1, 0)] for _ in range(5)]
BLOCKS = [[state[::-1] for state in states] for states in BLOCKS]


def chosen(schedule: Schedule, visit: int = 0, lengths: tuple[int, ...] = (4,) * 5) -> list[int]:
    return schedule.states(BLOCKS, lengths, random.Random(0), visit)


def test_noise_grows_over_a_window_and_starts_again() -> None:
    assert chosen(Schedule(4)) == [4, 3, 2, 1, 4]
    assert chosen(Schedule(3, ends="closed")) == [4, 2, 0, 4, 2]
    assert chosen(Schedule(4), visit=1) == chosen(Schedule(4))
    assert chosen(Schedule(4, rotate=True), visit=1) == [3, 2, 1, 4, 3]


def test_random_levels_are_those_of_the_window() -> None:
    schedule = Schedule(2, order="random")
    drawn = schedule.states(BLOCKS * 20, [4] * 100, random.Random(1), 0)
    assert set(drawn) == {4, 2}
    assert drawn == schedule.states(BLOCKS * 20, [4] * 100, random.Random(1), 0)


def test_what_is_after_the_end_of_the_answer_is_no_noise() -> None:
    # Of a block of one token, the only state with noise in it is the first.
    assert chosen(Schedule(1, ends="closed"), lengths=(4, 4, 4, 4, 1))[-1] == 1
    assert chosen(Schedule(5, ends="closed"), lengths=(4, 4, 4, 4, 1))[-1] == 0
