"""Noise of blocks: where it comes from, and that it is the block's own."""

from __future__ import annotations

from typing import Any

import pytest

from specbench.training.data.jacobi_states import NEAR, Blocks
from specbench.training.recipe import Text

TEXT = Text("set/a", list(range(100, 130)), list(range(11)))
VOCAB, PAD, N = 1000, 999, 4


def blocks(text: Text = TEXT, seed: int = 0, kind: Any = "context", size: int = N) -> Blocks:
    return Blocks(text, size, kind, VOCAB, PAD, seed)


def test_blocks_are_cuts_of_the_answer() -> None:
    made = blocks()
    assert [made.fixed(at) for at in range(len(made))] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


def test_a_block_begins_with_what_is_known_and_guesses_from_the_text_so_far() -> None:
    drawn = [blocks(seed=seed).initial(1) for seed in range(50)]
    assert {state[0] for state in drawn} == {4}
    assert {len(state) for state in drawn} == {N}
    guesses = {token for state in drawn for token in state[1:]}
    assert guesses <= {*TEXT.prompt, 0, 1, 2, 3, 4}
    assert len(guesses) > 25
    assert len(blocks().initial(2)) == 3
    assert blocks(kind="pad").initial(0) == [0, PAD, PAD, PAD]
    assert {token for seed in range(50) for token in blocks(seed=seed, kind="uniform").initial(1)[1:]} - guesses


def test_noise_is_the_blocks_own() -> None:
    made = blocks()
    first = [made.initial(at) for at in range(3)]
    assert [made.initial(at) for at in (2, 1, 0)][::-1] == first
    assert blocks(seed=1).initial(1) != first[1]
    assert blocks(Text("set/b", TEXT.prompt, TEXT.answer)).initial(1) != first[1]


def test_artificial_states_become_right_from_left_to_right() -> None:
    text = Text("set/a", list(range(100, 160)), TEXT.answer)
    seen = set()
    for seed in range(30):
        for block, fixed in enumerate(([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10])):
            states = blocks(text, seed).artificial(block)
            assert len(states) == len(fixed)
            for right, state in enumerate(states, 1):
                assert state[:right] == fixed[:right]
                assert len(state) == len(fixed)
                before = [*text.prompt, *text.answer[: block * N]][-NEAR * N :]
                assert set(state[right:]) <= set(before)
                seen |= set(state[right:]) if block == 0 else set()
    assert len(seen) > 30


STATES = [[1, 9, 9, 9, 9, 9], [1, 2, 9, 9, 9, 9], [1, 2, 3, 9, 9, 9], [1, 2, 3, 4, 9, 9], [1, 2, 3, 4, 5, 6]]


def test_augmentation_puts_half_of_the_wrong_tokens_right_but_the_first() -> None:
    for seed in range(20):
        changed = blocks(seed=seed).augmented(0, STATES, replacing=False)
        wrong = [sum(a != b for a, b in zip(state, STATES[-1], strict=True)) for state in changed]
        assert wrong == [5 - 2, 4 - 2, 3 - 1, 2, 0]
        assert [state.index(9) for state in changed[:-1]] == [1, 2, 3, 4]
        assert changed == blocks(seed=seed).augmented(0, STATES, replacing=False)
    assert STATES[0] == [1, 9, 9, 9, 9, 9]
    # As released it puts some right twice.
    assert {blocks(seed=seed).augmented(0, STATES, replacing=True)[0].count(9) for seed in range(40)} == {3, 4}


@pytest.mark.parametrize("replacing", [True, False])
def test_a_single_wrong_token_stays_wrong(replacing: bool) -> None:
    states = [[1, 2, 9], [1, 2, 8], [1, 2, 7], [1, 2, 3]]
    assert blocks().augmented(0, states, replacing=replacing) == states
