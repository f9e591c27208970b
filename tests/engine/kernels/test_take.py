"""What a head takes from a running step: by the kernel as by torch, for any trees in any slots."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specbench.engine.kernels.take import take
from specbench.engine.ops import TorchOps


@pytest.mark.parametrize("size", [5, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("counts", "follows"), [((3, 0, 5), (1, 0, 1)), ((1, 4, 2), (0, 1, 1)), ((0, 0, 7), (0, 0, 1))]
)
def test_the_kernel_takes_what_torch_takes(
    counts: tuple[int, ...], follows: tuple[int, ...], size: int, device: str
) -> None:
    draw = torch.Generator().manual_seed(sum(counts))
    slots, places, rows = len(counts), 4, 12

    def some(*shape: int) -> Tensor:
        return torch.randint(0, 900, shape, generator=draw, dtype=torch.int32).to(device)

    firsts, row, path = [], 0, torch.arange(rows, dtype=torch.int32)
    kept = []
    for count in counts:
        firsts.append(row)
        # The path to a row of the slot: ascending, from the root on.
        kept.append(min(count, places, 1 + count // 2) if count else 0)
        chosen = [0, *sorted((torch.randperm(max(count - 1, 0), generator=draw)[: max(kept[-1] - 1, 0)] + 1).tolist())]
        path[row : row + count] = torch.arange(count, dtype=torch.int32)
        path[row : row + kept[-1]] = torch.tensor(chosen[: kept[-1]], dtype=torch.int32)
        row += count
    outcome = some(rows), path.to(device), torch.tensor(kept, dtype=torch.int32, device=device), some(slots)
    hidden = torch.randn(rows, size, generator=draw).to(device)
    found = []
    for work in (TorchOps().take, take):
        draw.manual_seed(1)
        given, features = some(6 + places, slots + 1)[:, :slots], torch.randn(slots, places, size, generator=draw)
        features = features.to(device, torch.float16)
        work(
            outcome, torch.tensor(firsts, dtype=torch.int32, device=device), hidden,
            torch.tensor(follows, dtype=torch.int32, device=device), given[0], given[1], given[6:], features,
        )  # fmt: skip
        found.append((given, features))
    (given, features), (by_kernel, taken) = found
    assert torch.equal(given, by_kernel)
    assert torch.equal(features, taken)
    for slot, (first, count) in enumerate(zip(firsts, kept, strict=True)):
        if follows[slot]:
            behind = [int(outcome[0][first + int(path[first + place])]) for place in range(count)]
            assert given[6:, slot].tolist() == behind + [0] * (places - count)
            assert (int(given[0, slot]), int(given[1, slot])) == (count, int(outcome[3][slot]))
            assert torch.equal(features[slot, :count], hidden[first : first + count].half())
