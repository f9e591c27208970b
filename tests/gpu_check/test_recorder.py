"""The recorder refuses what a CUDA graph cannot hold, and a replay that would not be one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.wording import wording
from torch import Tensor

from benchmarks.gpu_check.recorder import recorded_capture
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
