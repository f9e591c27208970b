"""The draw of prompts: nested, fair to every category, and the same wherever it is made."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from specbench.common import Prompt
from specbench.evals.prompt_draw import draw_from_each, draw_prompts, permutation

SEEDS = st.integers(0, 1 << 40)


@st.composite
def tasks(draws: Any) -> list[Prompt]:
    """Prompts of some categories of any sizes, or of none, shuffled."""
    sizes = draws(st.lists(st.integers(1, 40), min_size=1, max_size=8))
    prompts = [
        Prompt(f"q{stratum}/{at}", "", False, category=f"c{stratum}" if stratum else "")
        for stratum, size in enumerate(sizes)
        for at in range(size)
    ]
    random.Random(draws(st.integers(0, 9))).shuffle(prompts)
    return prompts


def ids(prompts: Any) -> list[str]:
    return [prompt.id for prompt in prompts]


def plain(count: int) -> list[Prompt]:
    return [Prompt(f"t/{at}", "", False) for at in range(count)]


@given(tasks(), SEEDS, st.data())
def test_a_larger_limit_extends_a_smaller_one_in_the_datas_order(prompts: list[Prompt], seed: int, data: Any) -> None:
    few = data.draw(st.integers(1, len(prompts)))
    more = data.draw(st.integers(few, len(prompts)))
    small, large = draw_prompts(prompts, few, seed), draw_prompts(prompts, more, seed)
    assert (len(small), len(large)) == (few, more)
    assert {*ids(small)} <= {*ids(large)}
    assert [prompt for prompt in prompts if prompt in large] == large
    assert sorted(ids(permutation(prompts, seed))) == sorted(ids(prompts))


def assert_fair(prompts: list[Prompt], order: list[Prompt], of: Any = lambda prompt: prompt.category) -> None:
    """Every prefix holds each category's share of the whole within one prompt."""
    sizes = Counter(map(of, prompts))
    met: Counter[str] = Counter()
    for place, prompt in enumerate(order, 1):
        met[of(prompt)] += 1
        for category, size in sizes.items():
            # Below one in whole numbers: |met - place * size / total| < 1.
            assert abs(met[category] * len(prompts) - place * size) < len(prompts), (place, category)


@given(tasks(), SEEDS)
def test_every_beginning_and_every_end_holds_each_category_by_its_share(prompts: list[Prompt], seed: int) -> None:
    order = permutation(prompts, seed)
    assert_fair(prompts, order)
    assert_fair(prompts, order[::-1])


@given(tasks(), SEEDS, SEEDS)
def test_the_order_of_the_file_decides_nothing(prompts: list[Prompt], seed: int, other: int) -> None:
    shuffled = list(prompts)
    random.Random(other).shuffle(shuffled)
    assert ids(permutation(shuffled, seed)) == ids(permutation(prompts, seed))


# Computed once. Should this fail, every run drawn so far has other prompts than its command would draw now.
DRAWN = ["t/3", "t/7", "t/9"]


def test_what_seed_0_draws_never_changes() -> None:
    assert ids(draw_prompts(plain(10), 3, 0)) == DRAWN


def test_without_a_seed_they_are_the_first_of_the_data_and_who_takes_all_draws_nothing() -> None:
    assert ids(draw_prompts(plain(9), 3, None)) == ["t/0", "t/1", "t/2"]
    assert [draw_prompts(plain(4), limit, 0) for limit in (None, 4, 5)] == [plain(4)] * 3
    # Two prompts of one id are both taken, for the runner to refuse.
    assert ids(draw_prompts([*plain(2), *plain(2)], 3, 0)) == ["t/0", "t/1", "t/0", "t/1"]


@dataclass
class Text:
    """What a training learns from has no category."""

    id: str


def test_from_what_a_larger_limit_drew_a_smaller_one_draws_what_it_draws_of_all() -> None:
    texts = [Text(prompt.id) for prompt in draw_prompts(plain(60), 20, 3)]
    assert ids(draw_prompts(texts, 8, 3)) == ids(draw_prompts(plain(60), 8, 3))


@given(tasks(), SEEDS, st.data())
def test_held_out_prompts_are_others_and_stay_when_the_limit_grows(prompts: list[Prompt], seed: int, data: Any) -> None:
    held_out = data.draw(st.integers(0, len(prompts) - 1))
    few = data.draw(st.integers(1, len(prompts) - held_out))
    more = data.draw(st.integers(few, len(prompts) - held_out))
    (small, aside), (large, still) = (draw_from_each(prompts, limit, held_out, seed) for limit in (few, more))
    assert aside == still
    assert len(aside) == held_out
    assert large[:few] == small
    assert not {*ids(large)} & {*ids(aside)}
    assert {*ids(small)} == {*ids(draw_prompts(prompts, few, seed))}, "those that a run with this limit takes"
    assert draw_from_each(prompts, few, held_out // 2, seed)[1] == aside[: held_out // 2]
    assert_fair(prompts, aside)
    rest, _ = draw_from_each(prompts, None, held_out, seed)
    assert {*ids(rest), *ids(aside)} == {*ids(prompts)}
