"""States of a trajectory's blocks, as streams beside the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specbench.training.trajectory import Trajectory


def sizes(trajectory: Trajectory) -> list[int]:
    """Tokens of each block that belong to the answer; what is behind them in the last one is padding."""
    n, total = trajectory.block_size, len(trajectory.answer)
    return [min(n, total - start) for start in range(0, total, n)]


def cut(trajectory: Trajectory, limit: int, streams: int) -> Trajectory:
    """A trajectory without its last blocks, so that prompt and ``streams`` times the answer are ``limit`` tokens at
    most; its first block stays whatever its prompt's length."""
    n = trajectory.block_size
    blocks = max(1, (limit - len(trajectory.prompt)) // (streams * n))
    if len(trajectory.prompt) + streams * len(trajectory.answer) <= limit:
        return trajectory
    return replace(trajectory, answer=trajectory.answer[: blocks * n], blocks=trajectory.blocks[:blocks])


def stream(trajectory: Trajectory, chosen: Sequence[int]) -> list[int]:
    """The blocks in the states ``chosen``, one of each, as one text of the answer's length."""
    parts = zip(trajectory.blocks, chosen, sizes(trajectory), strict=True)
    return [token for states, at, size in parts for token in states[at][:size]]
