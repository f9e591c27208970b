"""The accepted length on texts that were not learnt from, without an engine."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specbench.methods.jetspec.learning.blocks import all_of
from specbench.methods.jetspec.learning.lesson import Lesson
from specbench.training.accepted import Accepted, leading
from specbench.training.recipe import Text


def held_out(lesson: Lesson, texts: Sequence[Text], device: torch.device) -> Accepted:
    """What decoding these texts with the head's best chain would take.

    Args:
        lesson: the head and its target.
        texts: answers of the target itself.
        device: the target's.
    """
    rows = lesson.head.config.block_size
    right = []
    for text in texts:
        ids = torch.tensor([[*text.prompt, *text.answer]], device=device)
        start, end = len(text.prompt), ids.shape[1]
        if end - start >= 2:
            blocks = all_of(start, end, rows, device)
            right.append(leading(lesson.drafts(ids, blocks)[0], ids[0], blocks.anchors[0], end))
    return Accepted.of(right, rows - 1)
