"""Jacobi Forcing's batches: which state of which block, the same for the same seed and visit."""

from __future__ import annotations

import pytest
import torch
from support.models import tiny_llama
from support.runs import made_up_trajectories

from specbench.methods.jf.learning import Collator, Lesson, Options
from specbench.training.objectives.packing import Packed, unpack

TEXTS = [made_up_trajectories(f"made/{number}", answer=answer) for number, answer in enumerate((11, 8, 3))]


def test_blocks_are_in_the_states_of_the_schedule() -> None:
    trajectory = made_up_trajectories(states=5)
    (sample,) = unpack(Packed(**Collator(Options(noise_window=3))([trajectory])))
    assert (sample.prompt, sample.answer, sample.block_size) == (trajectory.prompt, trajectory.answer, 4)
    (noisy,) = sample.noisy
    wrong = []
    for block, states in enumerate(trajectory.blocks):
        of = slice(4 * block, min(4 * block + 4, 11))
        here, size = noisy[of], of.stop - of.start
        assert here in [list(state[:size]) for state in states]
        differs = [a != b for a, b in zip(here, sample.answer[of], strict=True)]
        wrong.append(size - differs.index(True) if any(differs) else 0)
    assert wrong[0] == 0 < wrong[1] <= wrong[2] + 1  # levels 0, 1/3 and 2/3 of 4, 4 and 3 tokens


def test_long_texts_lose_their_last_blocks() -> None:
    batch = Packed(**Collator(Options(max_tokens=5 + 2 * 8 + 3))([made_up_trajectories(answer=11)]))
    assert unpack(batch)[0].answer == made_up_trajectories(answer=11).answer[:8]
    assert (
        unpack(Packed(**Collator(Options(max_tokens=8))([made_up_trajectories(answer=11)])))[0].answer
        == made_up_trajectories().answer[:4]
    )


def test_random_orders_are_drawn_anew_at_each_visit_and_alike_for_a_seed() -> None:
    options = Options(noise_order="random", noise_window=4)

    def ids(seed: int, visit: int) -> list[list[int]]:
        collator = Collator(options, seed)
        collator.visit = visit
        found: list[list[int]] = collator(TEXTS)["ids"].tolist()
        return found

    assert ids(0, 0) == ids(0, 0)
    assert len({str(ids(0, visit)) for visit in range(4)}) > 2
    assert any(ids(1, visit) != ids(0, visit) for visit in range(4))
    # A text's draws are its own: whatever else is in the batch.
    collator = Collator(options)
    assert [collator.sample(text) for text in TEXTS] == [collator.sample(text) for text in TEXTS[::-1]][::-1]


@pytest.mark.parametrize("norm", ["tokens", "blocks", "released"])
def test_a_step_learns(norm: str) -> None:
    options = Options.model_validate({"norm": norm, "noise_window": 2, "ar_weight": 1})
    lesson = Lesson(tiny_llama(50), options)
    found = lesson(**Collator(options, length=64, multiple=16)(TEXTS))
    assert found["consistency"] > 0
    found["loss"].backward()
    assert all(parameter.grad is not None for parameter in lesson.model.parameters())
    assert torch.isfinite(found["loss"])
