"""CLLM's loss: from any state of a block, predict its fixed point (Kou et al. 2024, arXiv:2403.00835, §3.2)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from specbench.decoding import option
from specbench.training import (
    ConsistencyCollator,
    ConsistencyLesson,
    Frozen,
    LabelOptions,
    Norm,
    Trajectory,
    global_consistency,
    local_consistency,
)

_CONTEXT = 1  # mask window in blocks: a noisy block sees the answer's own text before it


class Options(LabelOptions):
    """Options of the method's training. The released trainer uses one block per step, in its own sequence. Here all
    blocks of an answer are in one sequence, and each block attends only to what it would see in its own sequence."""

    loss: Literal["global", "local"] = option("global", help="learn from the fixed point, or from the next state")
    ar_weight: float = option(
        10.0, help="weight of the autoregressive loss: 10 as released; the paper also has 1, which decodes faster", ge=0
    )
    include_prompt: bool = option(False, help="include the prompt's tokens in the autoregressive loss, as released")
    smoothing: float = option(0.0, help="label smoothing of that loss; released 0.1, not in the paper", ge=0, lt=1)
    norm: Norm = option(
        "tokens", help="consistency loss: mean over tokens, over blocks, or as in Jacobi Forcing's code"
    )
    last_row: bool = option(False, help="a block's last row also predicts the next block's first token")
    max_tokens: int = option(4096, help="tokens of a packed text; the last blocks of longer texts are left out", ge=8)


class Lesson(ConsistencyLesson):
    """See :class:`ConsistencyLesson`."""

    def __init__(self, model: Any, options: Options, frozen: Frozen | None = None) -> None:
        objective = local_consistency if options.loss == "local" else global_consistency
        super().__init__(
            model,
            partial(objective, norm=options.norm, last=options.last_row),
            window=_CONTEXT,
            distance=options.measure,
            ar_weight=options.ar_weight,
            include_prompt=options.include_prompt,
            frozen=frozen,
            smoothing=options.smoothing,
        )


class Collator(ConsistencyCollator):
    """Sample for each block a state before the fixed point, uniformly; with ``loss=local`` add the state after it."""

    def __init__(self, options: Options, seed: int = 0, length: int = 0, multiple: int = 1) -> None:
        self._streams = 2 if options.loss == "local" else 1
        super().__init__(options.max_tokens, self._streams, seed, length, multiple)

    def choose(self, trajectory: Trajectory, draw: random.Random) -> Sequence[Sequence[int]]:
        last = [len(states) - 1 for states in trajectory.blocks]  # 0 if a block was right from the start
        chosen = [draw.randrange(max(1, final)) for final in last]
        after = [min(at + 1, final) for at, final in zip(chosen, last, strict=True)]
        return (chosen, after)[: self._streams]
