"""Ahead noise: what it copies, where it goes, and answers too short for it."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from specbench.methods.msn.noise import lowest, noised, replaced, segment_length, segment_start, sources


def test_sources_are_any_earlier_position() -> None:
    draw = random.Random(0)
    drawn = [sources(5, draw) for _ in range(3000)]
    assert {row[0] for row in drawn} == {row[1] for row in drawn} == {0}
    for place in range(2, 5):
        counts = Counter(row[place] for row in drawn)
        assert sorted(counts) == list(range(place))
        assert all(abs(count / 3000 - 1 / place) < 0.04 for count in counts.values())


def test_segments_start_anywhere_from_the_answers_first_token_and_never_hold_its_last() -> None:
    draw = random.Random(1)
    counts = Counter(segment_start(10, 9, 4, draw) for _ in range(3000))
    assert sorted(counts) == [10, 11, 12, 13, 14]  # 14 to 17; token 18 is the last
    assert all(abs(count / 3000 - 1 / 5) < 0.03 for count in counts.values())
    assert segment_start(10, 4, 3, draw) == segment_start(10, 1, 0, draw) == 10


IDS = torch.tensor([[10, 11, 12, 13, 14, 15, 16, 17], [20, 21, 22, 23, 24, 0, 0, 0]])
SOURCES = torch.tensor([[0, 0, 1, 2, 1, 4, 5, 0], [0, 0, 0, 2, 3, 0, 0, 0]])


@pytest.mark.parametrize(
    ("in_place", "first"), [(False, [10, 11, 12, 13, 11, 14, 15, 17]), (True, [10, 11, 12, 13, 11, 11, 11, 17])]
)
def test_noise_copies_from_the_clean_text_or_from_noise_before_it(in_place: bool, first: list[int]) -> None:
    found = noised(IDS, SOURCES, torch.tensor([4, 3]), torch.tensor([3, 1]), in_place)
    assert found.tolist() == [first, [20, 21, 22, 22, 24, 0, 0, 0]]
    assert noised(IDS, SOURCES, torch.tensor([4, 3]), torch.tensor([0, 0]), in_place).equal(IDS)  # no segment


def test_strangers_stand_in_the_segments_alone() -> None:
    found = replaced(IDS, SOURCES + 50, torch.tensor([4, 3]), torch.tensor([3, 1]))
    assert found.tolist() == [[10, 11, 12, 13, 51, 54, 55, 17], [20, 21, 22, 52, 24, 0, 0, 0]]
    assert replaced(IDS, SOURCES + 50, torch.tensor([4, 3]), torch.tensor([0, 0])).equal(IDS)


def test_in_place_is_the_published_loop() -> None:
    draw = random.Random(2)
    ids = [draw.randrange(100) for _ in range(30)]
    copied = sources(30, draw)
    expected = list(ids)
    for place in range(20, 27):
        expected[place] = expected[copied[place]]
    found = noised(torch.tensor([ids]), torch.tensor([copied]), torch.tensor([20]), torch.tensor([7]), True)
    assert found[0].tolist() == expected


def test_the_lowest_segment_is_found_by_trying_all() -> None:
    torch.manual_seed(3)
    losses = torch.rand(40, 20)
    prompts, answers = torch.randint(1, 8, (40,)), torch.randint(1, 12, (40,))
    lengths = torch.tensor([segment_length(answer, 4) for answer in answers.tolist()])
    found = lowest(losses, prompts, answers, lengths)
    for row, numbers in enumerate(torch.stack([prompts, answers, lengths], 1).tolist()):
        prompt, answer, length = numbers
        starts = range(prompt, prompt + max(1, answer - length))
        best = min(starts, key=lambda start: float(losses[row, start : start + length].sum()))
        if length:
            assert int(found[row]) == best
