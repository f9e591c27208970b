"""Which prompts are stepped together, from a plan and back from the records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.runs import record

from specbench.analysis.blocks import FILLINGS, blocks_of, prompt_segments, prompts_for, timing_units

NAMES = [f"p{number:03}" for number in range(400)]


@given(count=st.integers(0, 400), concurrency=st.integers(1, 32))
def test_blocks_hold_every_prompt_once_in_order_and_fill_the_slots(count: int, concurrency: int) -> None:
    blocks = blocks_of(NAMES[:count], concurrency)
    assert [prompt for block in blocks for prompt in block] == NAMES[:count]
    sizes = {len(block) for block in blocks}
    assert not sizes or max(sizes) - min(sizes) <= 1
    if concurrency == 1:
        assert sizes <= {1}
    elif count >= FILLINGS * concurrency:
        assert min(sizes) >= FILLINGS * concurrency
        assert len(blocks) == count // (FILLINGS * concurrency)
    else:
        assert len(blocks) == bool(count)


@pytest.mark.parametrize(("blocks", "concurrency"), [(6, 1), (6, 4), (3, 16)])
def test_so_many_prompts_make_so_many_blocks(blocks: int, concurrency: int) -> None:
    assert len(blocks_of(NAMES[: prompts_for(blocks, concurrency)], concurrency)) == blocks


def test_prompts_of_a_stretch_are_one_unit_and_those_of_either_arm_belong_together() -> None:
    ar = [record("ar", "a", segment=0), record("ar", "b", segment=0), record("ar", "c", segment=3)]
    mine = [record("m", "a", segment=1), record("m", "b", segment=2), record("m", "c", segment=4)]
    assert timing_units([prompt_segments(ar), prompt_segments(mine)], shared=True) == {"a": "a", "b": "a", "c": "c"}
    assert timing_units([prompt_segments(mine), prompt_segments(ar)], shared=True) == timing_units(
        [prompt_segments(ar), prompt_segments(mine)], shared=True
    )
    assert timing_units([prompt_segments(ar), prompt_segments(mine)], shared=False) == {"a": "a", "b": "b", "c": "c"}


def test_a_block_that_was_gone_on_with_is_still_one_unit() -> None:
    """A killed command left the first half of AR's stretch; the rest came in another one."""
    ar = [record("ar", "a", segment=0), record("ar", "b", segment=5)]
    mine = [record("m", "a", segment=6), record("m", "b", segment=6)]
    assert set(timing_units([prompt_segments(ar), prompt_segments(mine)], shared=True).values()) == {"a"}


def test_turns_and_repeats_of_a_block_keep_it_one_unit() -> None:
    arm = [
        record("ar", prompt, repeat=repeat, turn=turn, segment=4 * repeat + turn)
        for repeat in (0, 1)
        for turn in (1, 2)
        for prompt in ("a", "b")
    ]
    assert timing_units([prompt_segments(arm)], shared=True) == {"a": "a", "b": "a"}
