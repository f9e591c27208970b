"""Which rows learn, from which, and what they weigh: columns of small layouts counted by hand."""

from __future__ import annotations

import math

import pytest
import torch

from specbench.training.objectives.losses import (
    Norm,
    Pairs,
    Targets,
    autoregressive,
    evaluate_losses,
    global_consistency,
    local_consistency,
    progressive_consistency,
    shares,
)
from specbench.training.objectives.packing import NOISY, Sample, pack

# prompt 0-1 | k₀ 2-5 | l₀ 6-9 | k₁ 10-13 | l₁ 14-17 | k₂ 18-19 | l₂ 20-21
LONG = Sample([1, 1], [5, 6, 7, 8, 5, 6, 7, 8, 5, 6], [[5, 6, 9, 8, 5, 6, 7, 8, 5, 9]], 4)
# prompt 0 | k₀ 1-4 | l₀ 5-8, the noise in the first block's second token
EARLY = Sample([1], [5, 6, 7, 8], [[5, 9, 9, 8]], 4)
NONE = Targets(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), torch.zeros(0))


def pairs(found: Pairs) -> list[tuple[int, int]]:
    return list(zip(found.students.tolist(), found.teachers.tolist(), strict=True))


def test_jacobi_forcing_learns_from_the_first_wrong_token_on() -> None:
    # k₀ from its third token; k₁ has nothing; k₂'s second token is the answer's last: what follows is not known.
    assert pairs(progressive_consistency(pack([LONG]))) == [(4, 8), (5, 9)]
    assert pairs(progressive_consistency(pack([EARLY]))) == [(2, 6), (3, 7)]


def test_cllm_learns_from_the_row_that_foresees_the_first_wrong_token() -> None:
    # ... to the last but one of the block: the last foresees the next block. k₂'s first foresees its wrong second.
    assert pairs(global_consistency(pack([LONG]))) == [(3, 7), (4, 8), (18, 20)]
    assert pairs(global_consistency(pack([LONG]), last=True)) == [(3, 7), (4, 8), (5, 9), (18, 20)]
    assert pairs(global_consistency(pack([EARLY]))) == [(1, 5), (2, 6), (3, 7)]


def test_local_consistency_learns_from_the_next_state() -> None:
    # prompt 0 | k₀ 1-4 | k′₀ 5-8 | l₀ 9-12; the two states part at their third token, both from the text at the second
    packed = pack([Sample([1], [5, 6, 7, 8], [[5, 9, 9, 8], [5, 9, 7, 8]], 4)])
    assert pairs(local_consistency(packed)) == [(2, 6), (3, 7)]


def test_a_block_does_not_run_on_into_the_next() -> None:
    # Blocks of one token: k₀ 1 | l₀ 2 | k₁ 3 | l₁ 4, only the first is wrong.
    packed = pack([Sample([1], [5, 6, 7], [[9, 6, 7]], 1)])
    assert pairs(progressive_consistency(packed)) == [(1, 2)]
    assert pairs(global_consistency(packed)) == []


@pytest.mark.parametrize("prompt", [True, False])
def test_the_autoregressive_loss_is_that_of_the_text(prompt: bool) -> None:
    packed = pack([LONG, EARLY], multiple=32)
    found = autoregressive(packed, prompt)
    clean = [6, 7, 8, 9, 14, 15, 16, 17, 20]  # all of l₀, l₁, l₂ but the last; before them the prompt's last
    rows = [*([0] if prompt else []), 1, *clean, *(32 + at for at in (0, 5, 6, 7))]
    assert found.rows.tolist() == rows
    assert found.tokens.tolist() == [*([1] if prompt else []), *LONG.answer, *EARLY.answer]
    assert found.shares.tolist() == pytest.approx([1 / len(rows)] * len(rows))


def test_shares() -> None:
    packed = pack([LONG, EARLY])
    kept = torch.zeros_like(packed.ids, dtype=torch.bool)
    kept[0, [4, 5, 18]] = True  # two rows of block 0, none of block 1, one of block 2
    kept[1, 3] = True
    both = {norm: shares(packed, kept, norm)[kept].tolist() for norm in ("tokens", "blocks", "released")}
    assert both["tokens"] == pytest.approx([1 / 4] * 4)
    assert both["blocks"] == pytest.approx([1 / 8, 1 / 8, 1 / 4, 1 / 4])  # four blocks
    # Mean over the sample's rows, once more over its blocks (3 and 1), and the mean of two samples.
    assert both["released"] == pytest.approx([1 / 18, 1 / 18, 1 / 18, 1 / 2])


@pytest.mark.parametrize("norm", ["tokens", "blocks", "released"])
def test_where_samples_lie_changes_no_loss(norm: Norm) -> None:
    torch.manual_seed(0)
    scores: dict[tuple[int, ...], torch.Tensor] = {}
    totals = []
    for length in (0, 64):
        packed = pack([LONG, EARLY], length)
        assert len(packed.ids) == (1 if length else 2)
        keys = zip(*(x.flatten().tolist() for x in (packed.sample, packed.stream, packed.positions)), strict=True)
        states = torch.stack([scores.setdefault(key, torch.randn(3)) for key in keys])
        found = progressive_consistency(packed, norm)
        losses = evaluate_losses(lambda rows: rows, states, found, NONE)
        totals.append(float((losses.divergence * found.shares).sum()))
    assert totals[0] == pytest.approx(totals[1])
    assert totals[0] > 0
    packed = pack([LONG], multiple=40)  # shares of nothing
    assert not shares(packed, torch.zeros_like(packed.ids, dtype=torch.bool), norm).any()


def test_progressive_consistency_by_hand_on_three_tokens() -> None:
    """Scores are the states themselves: k₀[1] says (½, ¼, ¼) and l₀[1] (¼, ½, ¼); k₀[2] and l₀[2] agree."""
    packed = pack([Sample([0], [0, 1, 2, 0], [[0, 2, 2, 0]], 4)])  # k₀ 1-4, l₀ 5-8
    states = torch.zeros(9, 3)
    states[2], states[6] = torch.tensor([2.0, 1, 1]).log(), torch.tensor([1.0, 2, 1]).log()
    chosen, targets = progressive_consistency(packed), autoregressive(packed)
    found = evaluate_losses(lambda rows: rows, states, chosen, targets)
    assert chosen.students.tolist() == [2, 3]
    assert float((found.divergence * chosen.shares).sum()) == pytest.approx(math.log(2) / 4 / 2)
    # The prompt and l₀[0], l₀[2] know nothing: ln 3 each; l₀[1] gives the token 2, which follows it, a quarter.
    assert float((found.surprise * targets.shares).sum()) == pytest.approx((3 * math.log(3) + 2 * math.log(2)) / 4)
    assert packed.stream[0, 2] == NOISY
