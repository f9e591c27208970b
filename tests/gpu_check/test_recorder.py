"""The recorder refuses what a CUDA graph cannot hold, and a replay that would not be one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.wording import wording
from torch import Tensor

from benchmarks.gpu_check.recorder import ReplayDiffers, recorded_capture
from specbench.engine.graphs import CaptureFailed


def record(work: Callable[[], Any]) -> Callable[[], None]:
    """What replays some work, whose result is of no interest."""

    def quiet() -> None:
        work()

    return recorded_capture(torch.device("cpu"))(quiet)


def test_a_replay_reads_the_same_buffers_anew() -> None:
    given, found = torch.tensor([1.0, 2.0]), torch.zeros(2)
    replay = record(lambda: found.copy_((given * 2).cumsum(0)))
    given.copy_(torch.tensor([5.0, 7.0]))
    replay()
    assert found.tolist() == [10, 24]


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x[0] > 0),
        lambda x: torch.equal(x, x),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.unique(),
        lambda x: torch.masked_select(x, x > 0),
        lambda x: x.repeat_interleave(torch.tensor([1, 2, 3])),
    ],
    ids=["item", "bool", "equal", "nonzero", "mask", "unique", "masked_select", "repeat_interleave"],
)
@pytest.mark.parametrize("inference", [False, True])
def test_what_reads_the_host_is_refused(work: Callable[[Tensor], Any], inference: bool) -> None:
    x = torch.tensor([1.0, -2.0, 3.0])
    with torch.inference_mode(inference), pytest.raises(CaptureFailed, check=wording):
        record(lambda: work(x))


def test_indexing_by_numbers_is_allowed() -> None:
    x, at, found = torch.arange(4), torch.tensor([3, 0]), torch.zeros(2, dtype=torch.int64)
    replay = record(lambda: found.copy_(x[at]))
    at.copy_(torch.tensor([1, 2]))
    replay()
    assert found.tolist() == [1, 2]


def test_another_shape_in_a_replay_is_refused() -> None:
    x = torch.zeros(3)
    replay = record(lambda: (x + 1).sum())
    x.resize_(4)
    with pytest.raises(ReplayDiffers, match=r"\(4,\).*\(3,\)"):
        replay()


def test_an_allocation_in_a_replay_that_was_none_is_refused() -> None:
    """An operation that copies only where it has to: the same memory when it is recorded, another when replayed."""
    x = torch.zeros(2, 2)
    with torch.inference_mode():
        replay = record(lambda: torch.ops.aten.contiguous(x))
        x.set_(torch.arange(4.0).reshape(2, 2).T)  # type: ignore[call-overload]
    with pytest.raises(ReplayDiffers, check=wording):
        replay()
