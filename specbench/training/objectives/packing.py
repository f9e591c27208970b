"""Pack a text and the noisy states of its blocks into one sequence: prompt, k₀, l₀, k₁, l₁, … (Jacobi Forcing).

kⱼ is a state of block j on its way to the fixed point lⱼ, which is the answer's text. The i-th tokens of kⱼ and lⱼ have
the same position id, so that one forward predicts the next tokens of both. The last block ends where the answer does.
(The released code pads it and recognises padding by token id, which is wrong if the pad token is the end token.)
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from specbench.training.data.jacobi_states import cut
from specbench.training.data.jacobi_states import stream as stream_of
from specbench.training.data.trajectory_folder import Trajectory


class ConsistencyCollator(ABC):
    """Collate trajectories into a batch of :class:`specbench.training.objectives.consistency.ConsistencyLesson`.

    Args:
        max_tokens: most tokens of a packed text; the last blocks of longer ones are dropped.
        noisy: noisy streams per text.
        seed: determines, with the visit and the text's id, every random choice.
        length, multiple: see :func:`pack`.

    Attributes:
        visit: number of passes over the data so far; set by the training loop.
    """

    def __init__(self, max_tokens: int, noisy: int, seed: int, length: int, multiple: int) -> None:
        self._max_tokens, self._noisy, self._seed = max_tokens, noisy, seed
        self._length, self._multiple = length, multiple
        self.visit = 0

    def __call__(self, trajectories: Sequence[Trajectory]) -> dict[str, Tensor]:
        return pack([self.sample(each) for each in trajectories], self._length, self._multiple).tensors()

    def sample(self, trajectory: Trajectory) -> Sample:
        """Return a text with the states of its blocks that are used in this visit."""
        kept = cut(trajectory, self._max_tokens, 1 + self._noisy)
        chosen = self.choose(kept, random.Random(f"{self._seed}/{self.visit}/{kept.id}"))
        return Sample(kept.prompt, kept.answer, [stream_of(kept, states) for states in chosen], kept.block_size)

    @abstractmethod
    def choose(self, trajectory: Trajectory, draw: random.Random) -> Sequence[Sequence[int]]:
        """Return for each noisy stream the index of the state of each block."""


#: Streams. Noisy ones are numbered from NOISY on: a sequence can contain several states of a block.
PROMPT, CLEAN, NOISY = 0, 1, 2


@dataclass(frozen=True)
class Sample:
    """A text to pack.

    Attributes:
        prompt: token ids, at least one.
        answer: token ids: l₀, l₁, ….
        noisy: one or more streams, each as long as the answer: k₀, k₁, ….
    """

    prompt: Sequence[int]
    answer: Sequence[int]
    noisy: Sequence[Sequence[int]]
    block_size: int

    @property
    def size(self) -> int:
        """Tokens of the packed sequence: P + 2 T n for T full blocks with one noisy stream."""
        return len(self.prompt) + (1 + len(self.noisy)) * len(self.answer)


@dataclass(frozen=True)
class Packed:
    """B sequences of S tokens, of one or more samples each; int64 [B, S] throughout.

    Attributes:
        ids: tokens.
        positions: positions in the text: P + j n + t for token t of block j, in every stream.
        stream: PROMPT, CLEAN, or a number from NOISY on.
        block: j; -1 in the prompt.
        sample: index of the sample; -1 for padding.
        teacher: for a token of a noisy stream, the column of the token with the same position in the next noisy stream,
            or in the clean stream for the last one: the noisy row learns that row's distribution. -1 elsewhere.
        following: column of the clean (or prompt) token at the next position; -1 where the text ends.
    """

    ids: Tensor
    positions: Tensor
    stream: Tensor
    block: Tensor
    sample: Tensor
    teacher: Tensor
    following: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """Return the attributes by name, as a batch for a data loader."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


#: A padding token, in the order of Packed's attributes.
_FILLING = (0, 0, PROMPT, -1, -1, -1, -1)


def pack(samples: Sequence[Sample], length: int = 0, multiple: int = 1) -> Packed:
    """Pack samples into a batch.

    Args:
        length: samples share sequences of up to this many tokens; 0 gives each sample its own sequence. A longer sample
            also gets its own.
        multiple: sequences are padded to a multiple of it, so that compiled kernels see fewer shapes.
    """
    bins: list[list[int]] = []
    for at in sorted(range(len(samples)), key=lambda at: -samples[at].size) if length else range(len(samples)):
        fits = (row for row in bins if sum(samples[other].size for other in row) + samples[at].size <= length)
        room = next(fits, None)
        if room is None:
            bins.append(room := [])
        room.append(at)
    return stack([_sequence([(at, samples[at]) for at in sorted(row)]) for row in sorted(map(sorted, bins))], multiple)


def stack(rows: Sequence[Sequence[tuple[int, ...]]], multiple: int = 1) -> Packed:
    """Return sequences of tokens, each with its attributes in :class:`Packed`'s order, as a batch padded at the ends.

    Args:
        multiple: see :func:`pack`.
    """
    width = -(-max(map(len, rows)) // multiple) * multiple
    filled = torch.tensor([[*row, *[_FILLING] * (width - len(row))] for row in rows], dtype=torch.int64)
    return Packed(*filled.movedim(-1, 0).contiguous())


def _sequence(samples: Sequence[tuple[int, Sample]]) -> list[tuple[int, ...]]:
    """Return the tokens of one sequence, each with its attributes in :class:`Packed`'s order."""
    tokens: list[tuple[int, ...]] = []
    for at, sample in samples:
        layout = list(_layout(sample))
        columns = {(stream, place): len(tokens) + i for i, (_, place, stream, _) in enumerate(layout)}
        text = {place: column for (stream, place), column in columns.items() if stream < NOISY}
        for token, place, stream, block in layout:
            above = stream + 1 if stream + 1 < NOISY + len(sample.noisy) else CLEAN
            teacher = columns[above, place] if stream >= NOISY else -1
            tokens.append((token, place, stream, block, at, teacher, text.get(place + 1, -1)))
    return tokens


def _layout(sample: Sample) -> Iterator[tuple[int, int, int, int]]:
    """Yield (token, position, stream, block) of a sample's tokens, in order."""
    start, n = len(sample.prompt), sample.block_size
    for place, token in enumerate(sample.prompt):
        yield token, place, PROMPT, -1
    streams = [*enumerate(sample.noisy, NOISY), (CLEAN, sample.answer)]
    for first in range(0, len(sample.answer), n):
        for stream, tokens in streams:
            for place, token in enumerate(tokens[first : first + n], start + first):
                yield token, place, stream, first // n


def unpack(packed: Packed) -> list[Sample]:
    """Return the samples of a batch, in their order. A text shorter than a block is one block of its own length."""
    found: dict[int, Sample] = {}
    for row in range(len(packed.ids)):
        ids, stream, block, sample = (x[row] for x in (packed.ids, packed.stream, packed.block, packed.sample))
        for at in sample[sample >= 0].unique().tolist():
            here = sample == at
            noisy = [ids[here & (stream == s)].tolist() for s in range(NOISY, int(stream[here].max()) + 1)]
            size = int((here & (stream == CLEAN) & (block == 0)).sum())
            prompt, answer = (ids[here & (stream == s)].tolist() for s in (PROMPT, CLEAN))
            found[at] = Sample(prompt, answer, noisy, size)
    return [found[at] for at in sorted(found)]
