"""A draft head reads the step's results row by row for slots that follow it, whatever rows the other slots have."""

from __future__ import annotations

import pytest
import torch

from specbench.engine.ops import TorchOps

PLACES, SIZE = 4, 3


@pytest.mark.parametrize(
    ("rows", "paths", "follows"),
    [
        ([3, 2], [[0, 2], [0]], [1, 1]),
        ([3, 2, 4], [[0, 1], [0, 1], [0, 2, 3]], [1, 0, 1]),
        ([4, 0], [[0, 1, 2, 3], []], [1, 1]),  # the last slot has no rows, and would begin after all rows
        ([0, 1, 5], [[], [0], [0, 3]], [1, 1, 1]),
        ([1], [[0]], [0]),
    ],
)
def test_each_slot_that_follows_has_its_path_and_the_tokens_after_it(
    rows: list[int], paths: list[list[int]], follows: list[int]
) -> None:
    total, slots = sum(rows), len(rows)
    firsts = [sum(rows[:slot]) for slot in range(slots)]
    path = torch.cat([torch.arange(count) for count in rows]).int()
    for first, taken in zip(firsts, paths, strict=True):
        path[first : first + len(taken)] = torch.tensor(taken, dtype=torch.int32)
    next_token, bonus = torch.arange(total).int() + 100, torch.arange(slots).int() + 900
    count = torch.tensor([len(taken) for taken in paths], dtype=torch.int32)
    # Row ``first + depth`` of the hidden states is that of the row at this depth of the path.
    hidden = torch.arange(total * SIZE, dtype=torch.float32).reshape(total, SIZE)
    new, anchor = torch.full((slots,), 7, dtype=torch.int32), torch.full((slots,), 8, dtype=torch.int32)
    tokens, features = torch.full((PLACES, slots), 9, dtype=torch.int32), torch.full((slots, PLACES, SIZE), -1.0)
    before = new.clone(), anchor.clone(), tokens.clone(), features.clone()
    TorchOps().take(
        (next_token, path, count, bonus), torch.tensor(firsts, dtype=torch.int32), hidden,
        torch.tensor(follows, dtype=torch.int32), new, anchor, tokens, features,
    )  # fmt: skip
    for slot, (first, taken) in enumerate(zip(firsts, paths, strict=True)):
        if not follows[slot]:
            was = [part[slot] for part in (*before[:2], before[2].T, before[3])]
            now = [part[slot] for part in (new, anchor, tokens.T, features)]
            assert all(torch.equal(one, other) for one, other in zip(was, now, strict=True))
            continue
        assert (int(new[slot]), int(anchor[slot])) == (len(taken), 900 + slot)
        following = [100 + first + row for row in taken]
        assert tokens[:, slot].tolist() == following + [0] * (PLACES - len(taken))
        assert torch.equal(features[slot, : len(taken)], hidden[first : first + len(taken)])
        assert (features[slot, len(taken) :] == -1).all()
