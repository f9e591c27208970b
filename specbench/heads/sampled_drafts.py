"""Draft tokens that a chain samples for block verification, with the distributions that they are sampled from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specbench.decoding import Proposal, Target
from specbench.engine import HeadRows


class SampledDrafts:
    """Sample a chain's tokens at the target's temperature; at temperature 0 take the best tokens.

    Distributions and temperature are in fixed buffers, because a round is captured.

    Args:
        count: most draft tokens of a chain.
        vocabulary: number of tokens that the head can draft.
    """

    def __init__(self, target: Target, count: int, vocabulary: int, device: Any) -> None:
        self._sampling = target.sampling
        self._drawn_from = torch.zeros(target.slots, count, vocabulary, dtype=torch.float32, device=device)
        self._temperature = torch.zeros((), dtype=torch.float32, device=device)

    def update(self) -> None:
        """Use the target's current temperature in the next round."""
        self._temperature.fill_(self._sampling().temperature)

    def draw(self, rows: HeadRows, scores: Tensor, place: int) -> tuple[Tensor, Tensor]:
        """Return a token for each text, like :meth:`HeadRows.best` with one candidate.

        Args:
            scores: [S, 1, V].
            place: index of the token in its chain.
        """
        wide = scores[:, 0].float()
        greedy = self._temperature == 0
        probabilities = (wide / torch.where(greedy, 1.0, self._temperature)).softmax(-1)
        self._drawn_from[: len(probabilities), place] = probabilities
        found = torch.where(greedy, wide.argmax(-1), rows.drawn(probabilities, place))[:, None, None]
        return wide.log_softmax(-1)[:, None].gather(-1, found), found

    def proposal(self, slot: int, count: int, ids: Tensor | None) -> Proposal | None:
        """Return the distributions of a chain's first ``count`` tokens; None if they were not sampled.

        Args:
            ids: the target's ids of the tokens that the head can draft; None is all.
        """
        return Proposal(self._drawn_from[slot, :count].clone(), ids) if self._sampling().temperature else None
