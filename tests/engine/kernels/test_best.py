"""The best drafts of a row: torch's top-k with log-probabilities, and of equal scores the lowest id first."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specbench.engine.kernels import best as kernels
from specbench.engine.kernels.best import MOST, best, takes
from specbench.engine.kernels.ops import TritonOps
from specbench.engine.ops import TorchOps

SITE = 8  # no address


def noise(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1])).to(device, dtype)


def check(scores: Tensor, count: int) -> None:
    """Against a stable sort and torch's logsumexp."""
    logp, tokens = best(scores, count, SITE)
    assert (logp.dtype, tokens.dtype) == (torch.float32, torch.int64)
    assert logp.shape == tokens.shape == (*scores.shape[:-1], count)
    order = scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    assert torch.equal(tokens, order)
    expected = scores.double().gather(-1, order) - scores.double().logsumexp(-1, keepdim=True)
    torch.testing.assert_close(logp.double(), expected, atol=3e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("shape", "count"), [((2, 3, 2500), 7), ((4, 1, 1024), 1), ((1, 2, 1025), MOST), ((3, 5), 5)])
def test_the_best_are_torchs(shape: tuple[int, ...], count: int, dtype: torch.dtype, device: str) -> None:
    """Halves of so many tokens have equal scores in plenty."""
    check(noise(*shape, dtype=dtype, device=device), count)


def test_equal_scores_go_by_their_ids(device: str) -> None:
    scores = torch.zeros(1, 1, 3000, device=device)
    scores[..., [2999, 1500, 40]] = 1.0
    scores[..., 10] = -0.0  # is 0
    assert best(scores, 6, SITE)[1].flatten().tolist() == [40, 1500, 2999, 0, 1, 2]
    check(scores, 6)


def test_a_broken_row_names_tokens_and_breaks_no_other(device: str) -> None:
    scores = noise(2, 1500, device=device)
    expected = best(scores, 3, SITE)
    scores[0, 1200] = float("nan")
    logp, tokens = best(scores, 3, SITE)
    assert tokens[0, 0] == 1200
    assert logp[0].isnan().any()
    assert torch.equal(tokens[1], expected[1][1])
    assert torch.equal(logp[1], expected[0][1])


def test_a_row_is_the_same_in_any_company_and_again(device: str) -> None:
    scores = noise(6, 3000, dtype=torch.float16, device=device)
    whole = best(scores, 4, SITE)
    counts = kernels.counters(scores.device, SITE, 8)
    for rows in (1, 5, 6):
        assert all(torch.equal(a, b[:rows]) for a, b in zip(best(scores[:rows], 4, SITE), whole, strict=True))
        assert not counts.any()


def test_rows_may_be_parts_of_larger_ones(device: str) -> None:
    whole = noise(4, 6, 1100, device=device)
    check(whole[:, 2:4, 50:1090], 3)
    check(whole[..., :5].transpose(1, 2), 3)


def test_what_the_kernel_does_not_take_is_torchs(device: str) -> None:
    ops = TritonOps(torch.device(device))
    assert takes(noise(2, 40, dtype=torch.bfloat16, device=device), 16)
    for scores, count in ((noise(2, 40, dtype=torch.float64, device=device), 3), (noise(2, 40, device=device), 17)):
        assert not takes(scores, count)
        assert all(
            torch.equal(a, b) for a, b in zip(ops.best(scores, count), TorchOps().best(scores, count), strict=True)
        )
