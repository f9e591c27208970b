"""Grow the candidates of a draft tree level by level on the device (EAGLE-2, Li et al. 2024, arXiv:2406.16858, §4)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

#: (level, last tokens [S, W] of the paths, which path of the level before each continues [S, W] or None on level 1)
#: -> tokens after each path [S, W, W], and their log-probabilities.
Extend = Callable[[int, Tensor, Tensor | None], tuple[Tensor, Tensor]]


def grow_levels(depth: int, width: int, tokens: Tensor, logp: Tensor, extend: Extend) -> tuple[Tensor, Tensor, Tensor]:
    """Extend the W paths of each level with the highest total log-probability by W tokens each.

    Args:
        depth: D, number of levels.
        width: W.
        tokens, logp: [S, W] the tokens after the text and their log-probabilities.

    Returns:
        Tokens, log-probabilities and indices of the extended candidates, in the order of :class:`Levels`.
    """
    every, scored, extended = [tokens], [logp], [tokens[:, :0]]
    total, path = logp, None
    for level in range(1, depth):
        found, likely = extend(level, tokens, path)
        every.append(found.flatten(1))
        scored.append(likely.flatten(1))
        if level + 1 < depth:
            total, best = (total[:, :, None] + likely).flatten(1).topk(width)
            extended.append(best)
            tokens, path = found.flatten(1).gather(1, best), best // width
    return torch.cat(every, dim=1), torch.cat(scored, dim=1), torch.cat(extended, dim=1)
