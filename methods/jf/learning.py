"""Jacobi Forcing's loss: progressive consistency on pairs of noisy and clean blocks (the authors' post, 2025)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from specbench.decoding import option
from specbench.methods.jf.schedule import Ends, Measure, Order, Schedule
from specbench.training import (
    ConsistencyCollator,
    ConsistencyLesson,
    Frozen,
    LabelOptions,
    Norm,
    Trajectory,
    block_sizes,
    progressive_consistency,
)


class Options(LabelOptions):
    """Options of the method's training.

    Where the post and the released code differ, the default is the post's, except ``noise_measure`` and ``ar_weight``,
    which follow the released code. The post gives no weight; ``noise_measure=unconverged`` follows the post.
    """

    noise_window: int = option(16, "w", help="blocks over which the noise level grows", ge=1)
    noise_order: Order = option("cyclic", help="levels in turn, or at random")
    noise_ends: Ends = option("open", help="levels 0, 1/w, … (w-1)/w (post), or w of them from 0 to 1 (released)")
    noise_measure: Measure = option(
        "divergence", help="noise of a state: all from the first wrong token on (released), or wrong tokens (post)"
    )
    noise_rotate: bool = option(False, help="rotate the levels from visit to visit; not from a publication")
    mask_window: int | None = option(None, "W", help="blocks that see each other's noise; default is all", ge=1)
    ar_weight: float = option(
        10.0, help="weight of the autoregressive loss: released 10, checkpoints are named 1", ge=0
    )
    include_prompt: bool = option(False, help="include the prompt's tokens in the autoregressive loss, as released")
    norm: Norm = option("tokens", help="consistency loss: mean over tokens, over blocks, or as released")
    max_tokens: int = option(16384, help="tokens of a packed text; the last blocks of longer texts are left out", ge=8)


class Lesson(ConsistencyLesson):
    """See :class:`ConsistencyLesson`."""

    def __init__(self, model: Any, options: Options, frozen: Frozen | None = None) -> None:
        super().__init__(
            model,
            partial(progressive_consistency, norm=options.norm),
            window=options.mask_window,
            distance=options.measure,
            ar_weight=options.ar_weight,
            include_prompt=options.include_prompt,
            frozen=frozen,
        )


class Collator(ConsistencyCollator):
    """Choose for each block the state whose noise is nearest to the schedule's level."""

    def __init__(self, options: Options, seed: int = 0, length: int = 0, multiple: int = 1) -> None:
        super().__init__(options.max_tokens, 1, seed, length, multiple)
        self._schedule = Schedule(
            options.noise_window, options.noise_order, options.noise_ends, options.noise_measure, options.noise_rotate
        )

    def choose(self, trajectory: Trajectory, draw: random.Random) -> Sequence[Sequence[int]]:
        return [self._schedule.states(trajectory.blocks, block_sizes(trajectory), draw, self.visit)]
