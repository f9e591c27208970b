"""Pace: how much slower this machine is, at the moment, than the one that limits of processor time were set on."""

from __future__ import annotations

import time

import torch

#: Processor seconds that :func:`_work` took there.
PACE = 0.036


def slowness() -> float:
    """1 where the machine is as fast as that one, or faster."""
    return max(1.0, _work() / PACE)


def _work() -> float:
    """Processor seconds of a piece of work like that of most tests: small tensors, and Python around them."""
    before, ones = time.process_time(), torch.ones(64, 64)
    for turn in range(3000):
        _ = {at: at * turn for at in range(20)}, (ones @ ones).softmax(-1).sum()
    return time.process_time() - before
