"""Trajectories to batches: which states of their blocks go beside the text is a method's choice."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from specbench.training.packing import Sample, pack
from specbench.training.states import cut, stream
from specbench.training.trajectory import Trajectory


class ConsistencyCollator(ABC):
    """Trajectories as a batch of :class:`specbench.training.lesson.ConsistencyLesson`.

    Args:
        max_tokens: of a packed text; last blocks are left out of longer ones.
        noisy: streams beside the text.
        seed: with the visit and the text's id it decides every draw.
        length: samples share sequences of up to so many tokens, see :func:`pack`.
        multiple: see :func:`pack`.

    Attributes:
        visit: how often the data were gone through before; set by whoever loops.
    """

    def __init__(self, max_tokens: int, noisy: int, seed: int, length: int, multiple: int) -> None:
        self._max_tokens, self._noisy, self._seed = max_tokens, noisy, seed
        self._length, self._multiple = length, multiple
        self.visit = 0

    def __call__(self, trajectories: Sequence[Trajectory]) -> dict[str, Tensor]:
        return pack([self.sample(each) for each in trajectories], self._length, self._multiple).tensors()

    def sample(self, trajectory: Trajectory) -> Sample:
        """A text with the states that its blocks are learnt from at this visit."""
        kept = cut(trajectory, self._max_tokens, 1 + self._noisy)
        chosen = self.choose(kept, random.Random(f"{self._seed}/{self.visit}/{kept.id}"))
        return Sample(kept.prompt, kept.answer, [stream(kept, states) for states in chosen], kept.block_size)

    @abstractmethod
    def choose(self, trajectory: Trajectory, draw: random.Random) -> Sequence[Sequence[int]]:
        """For each noisy stream, the state of each block.

        Args:
            trajectory: with the blocks that are learnt from.
            draw: generator of this text at this visit.
        """
