"""The accepted length on texts that were not learnt from, without an engine: texts are the target's own answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specbench.methods.jetspec.learning.blocks import all_of
from specbench.methods.jetspec.learning.lesson import Lesson


@dataclass(frozen=True)
class HeldOut:
    """Accepted lengths of the head's chain.

    Attributes:
        tokens: behind the first token of each answer.
        rounds: forwards of the target that emit them.
        depths: share of anchors whose first 1, 2, … drafts are all right.
    """

    tokens: int
    rounds: int
    depths: tuple[float, ...]

    @property
    def accepted_length(self) -> float:
        """Tokens per round, the bonus token included (τ of JetSpec)."""
        return self.tokens / max(1, self.rounds)


def held_out(lesson: Lesson, texts: Sequence[Any], device: torch.device) -> HeldOut:
    """What decoding these texts with the head's best chain would take.

    A greedy answer is what the target says at each of its positions, so a draft is accepted as far as it is the text;
    of a sampled one the same holds, its noise being the position's.

    Args:
        lesson: the head and its target.
        texts: :class:`specbench.training.recipe.Text`, answers of the target itself.
        device: the target's.
    """
    rows = lesson.head.config.block_size
    tokens = rounds = anchors = 0
    depths = torch.zeros(rows - 1)
    for text in texts:
        ids = torch.tensor([[*text.prompt, *text.answer]], device=device)
        start, end = len(text.prompt), ids.shape[1]
        if end - start < 2:
            continue
        blocks = all_of(start, end, rows, device)
        right = _leading(lesson.drafts(ids, blocks)[0], ids[0], blocks.anchors[0], end).cpu()
        depths += (right[:, None] > torch.arange(rows - 1)).sum(0)
        anchors += len(right)
        at = 0
        while at < len(right):
            # Beyond the text nothing counts: the bonus token of the last round may already have been its end.
            at += int(right[at]) + 1
            rounds += 1
        tokens += end - 1 - start
    return HeldOut(tokens, rounds, tuple(round(float(share), 4) for share in depths / max(1, anchors)))


def _leading(drafts: Tensor, ids: Tensor, anchors: Tensor, end: int) -> Tensor:
    """How many drafts of each block [A, R - 1] are the text's tokens, from the first on."""
    offsets = torch.arange(1, drafts.shape[1] + 1, device=ids.device)
    places = anchors[:, None] + offsets
    right = (places < end) & (drafts == ids[places.clamp(max=end - 1)])
    return right.int().cumprod(dim=1).sum(dim=1)
