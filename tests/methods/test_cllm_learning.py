"""CLLM's batches: a state of each block that is not its fixed point, after the answer's own text."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from support.models import tiny_llama
from support.runs import made_up_trajectories

from specbench.methods.cllm.learning import Collator, Lesson, Options
from specbench.training.data.trajectory_folder import Trajectory
from specbench.training.objectives.distances import forward_kl
from specbench.training.objectives.packing import Packed, unpack

#: One block of three states that can be distinguished, and one that was right from the start.
STATES = [[[5, 9, 9], [5, 6, 9], [5, 6, 7]], [[8, 8, 8]]]
TEXT = Trajectory("states/0", [1, 2], [5, 6, 7, 8, 8, 8], 3, 0, STATES)


def test_any_state_but_the_fixed_point_is_drawn_alike() -> None:
    collator, counts = Collator(Options()), Counter[tuple[int, ...]]()
    for visit in range(1000):
        collator.visit = visit
        (noisy,) = unpack(Packed(**collator([TEXT])))[0].noisy
        counts[tuple(noisy[:3])] += 1
        assert noisy[3:] == [8, 8, 8]
    assert sorted(counts) == [(5, 6, 9), (5, 9, 9)]
    assert abs(counts[5, 6, 9] - 500) < 60


def test_local_consistency_gets_the_next_state_too() -> None:
    collator = Collator(Options(loss="local"))
    for visit in range(5):
        collator.visit = visit
        state, after = unpack(Packed(**collator([TEXT])))[0].noisy
        at = STATES[0].index(list(state[:3]))
        assert after == [*STATES[0][at + 1], 8, 8, 8]


@pytest.mark.parametrize("last", [False, True])
@torch.no_grad()
def test_the_loss_is_that_of_each_block_in_a_sequence_of_its_own(last: bool) -> None:
    """As the paper trains: the prompt with the blocks before, and a state or its fixed point after it."""
    model = tiny_llama(50)
    trajectory = made_up_trajectories(answer=11)
    options = Options(ar_weight=0, last_row=last)
    collator = Collator(options)
    found = Lesson(model, options)(**collator([trajectory]))
    (noisy,) = collator.sample(trajectory).noisy
    divergences = []
    for start in range(0, 11, 4):
        before = [*trajectory.prompt, *trajectory.answer[:start]]
        fixed, state = trajectory.answer[start : start + 4], noisy[start : start + 4]
        if state == fixed:
            continue
        first = next(at for at, (a, b) in enumerate(zip(state, fixed, strict=True)) if a != b)
        both = torch.tensor([[*before, *state], [*before, *fixed]])
        student, teacher = model(both).logits[:, len(before) :]
        rows = len(fixed) - (0 if last and start + 4 < 11 else 1)
        divergences += forward_kl(student, teacher)[first - 1 : rows].tolist()
    assert len(divergences) > 3
    assert float(found["consistency"]) == pytest.approx(sum(divergences) / len(divergences), rel=1e-4)


@torch.no_grad()
def test_smoothing_and_norm_of_the_options_are_those_of_the_loss() -> None:
    model, batch = tiny_llama(50), Collator(Options())([made_up_trajectories(answer=11)])

    def loss(**options: Any) -> dict[str, float]:
        return {name: float(value) for name, value in Lesson(model, Options(**options))(**batch).items()}

    plain, smooth, blocks = loss(), loss(smoothing=0.5), loss(norm="blocks")
    assert smooth["loss"] != pytest.approx(plain["loss"], rel=1e-3)
    assert smooth["consistency"] == pytest.approx(plain["consistency"])
    assert blocks["consistency"] != pytest.approx(plain["consistency"], rel=1e-3)
