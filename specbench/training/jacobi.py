"""Jacobi trajectories of known answers, many blocks in one forward.

To run a block takes the text before it. The answer being known, that is known for all of its blocks, so none of them
waits for another: the text is cached once, and every forward advances as many blocks, of as many answers, as fit. What
is right from the block's start is what the cache holds, so only what is behind it is computed.

The states are those of ``jacobi`` with ``window=block`` and of ``cllm``: ``x'[i + 1]`` is what the target says after
``x[0..i]``, for all i at once (Santilli et al. 2023, Algorithm 2; CLLM §3.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from specbench.drafting.convergence import prefix
from specbench.engine.chains import Chain, next_tokens
from specbench.engine.engine import MAX_ROWS, Engine
from specbench.engine.sampler import Sampling
from specbench.engine.tree import TokenTree
from specbench.models import LoadedModel
from specbench.training.noising import Blocks
from specbench.training.recipe import Text

# Forwards are filled up to multiples of so many rows: oneDNN makes a kernel for every row count that it meets, which
# takes as long as a small forward, and keeps it, which takes some MB.
_FULL = 16


@dataclass(frozen=True)
class Run:
    """What came of one answer.

    Attributes:
        blocks: as they were given.
        states: [block][state], from the initial one to the fixed point; None for a block that was given up.
        ties: places of the answer where this forward says another token than the answer has: two scores so close that
            their order depends on the shape of the forward. Such an answer is not a fixed point there.
    """

    blocks: Blocks
    states: list[list[list[int]] | None]
    ties: list[int]


class Jacobi:
    """Runs the blocks of answers to their fixed points.

    Args:
        model: what the answers are of.
        sampling: how they were decoded; noise of a sampled answer is the position's own, so its trajectories are
            as determined as those of a greedy one.
        texts: the longest prompt and answer that will come have to be among them.
        rows: of a forward, at most, but for a block that is larger by itself.

    Raises:
        UsageError: the model is not one the engine can run.
        EnvironmentRefused: the cache does not fit in memory.
    """

    def __init__(self, model: LoadedModel, sampling: Sampling, texts: Sequence[Text], rows: int) -> None:
        longest = max(len(text.answer) for text in texts)
        self._rows = rows
        self._tree_rows = min(MAX_ROWS - _FULL, longest)
        # A block needs half of its rows on average; answers are of different lengths.
        slots = 1 + -(-3 * rows // longest)
        self._engine = Engine(
            model.model,
            slots=min(slots, len(texts)),
            capacity=max(len(text.prompt) + len(text.answer) for text in texts),
            max_rows=self._tree_rows + _FULL,
            sampling=sampling,
        )

    def close(self) -> None:
        """Gives the model back."""
        self._engine.close()

    def run(self, answers: Iterable[Blocks]) -> Iterator[Run]:
        """The trajectories of answers, each as it is finished."""
        waiting = iter(answers)
        running: list[_Answer] = []
        more = True
        while more or running:
            while more and len(running) < self._engine.slots and sum(each.rows for each in running) < self._rows:
                blocks = next(waiting, None)
                more = blocks is not None
                if blocks is not None:
                    running.append(self._begin(blocks))
            self._advance([block for answer in running for block in answer.unfinished])
            for answer in running:
                if not answer.unfinished:
                    self._engine.free(answer.slot)
                    yield answer.run
            running = [answer for answer in running if answer.unfinished]

    def _begin(self, blocks: Blocks) -> _Answer:
        slot = self._engine.alloc()
        ties = self._cache(slot, blocks.text)
        # The token that a block begins with is given to it, whatever the target says before it.
        lost = {at // blocks.size for at in ties if at % blocks.size}
        return _Answer(slot, blocks, ties, lost)

    def _cache(self, slot: int, text: Text) -> list[int]:
        """Fills a slot with prompt and answer; returns the places where the target says something else."""
        ties, done, before = [], 0, list(text.prompt)
        while done < len(text.answer):
            part = list(text.answer[done : done + self._tree_rows])
            filling = [0] * _missing(len(before) - 1 + len(part))
            tokens = [before[-1], *part[:-1], *filling]
            accept = [True] * len(part) + [False] * len(filling)
            result = self._engine.prefill(slot, before, TokenTree(tokens, range(-1, len(tokens) - 1), accept))
            taken = len(result.path)  # up to a tie: what is behind it is fed once more, as a prompt is
            ties += [done + at for at in range(taken) if result.next_tokens[at] != part[at]]
            done += taken
            before = [text.answer[done - 1]]
        return ties

    def _advance(self, blocks: Sequence[_Block]) -> None:
        """One forward for the first of ``blocks``, as many as fit: the oldest answers are finished first."""
        chosen: list[_Block] = []
        rows = 0
        for block in blocks:
            if chosen and rows + block.rows > self._rows:
                break
            chosen.append(block)
            rows += block.rows
        if chosen:
            chains = [block.chain() for block in chosen]
            if filling := _missing(rows):
                chains.append(Chain(chains[-1].slot, 0, [0] * filling))
            for block, said in zip(chosen, next_tokens(self._engine, chains), strict=False):
                block.update(said)


def _missing(rows: int) -> int:
    return -rows % _FULL


class _Block:
    """A block on its way to its fixed point.

    Args:
        slot: where its text is cached.
        start: position of its first token.
        fixed: its fixed point.
        initial: the state it starts from.
    """

    def __init__(self, slot: int, start: int, fixed: list[int], initial: list[int]) -> None:
        self._slot, self._start, self._fixed = slot, start, fixed
        self.states: list[list[int]] = []
        self._add(initial)

    @property
    def rows(self) -> int:
        """Of its next forward; 0 when it is finished."""
        return max(0, len(self._fixed) - 1 - self._right)

    def chain(self) -> Chain:
        """Its tokens from the first wrong one on; what comes of the last is behind the block."""
        return Chain(self._slot, self._start + self._right, self.states[-1][self._right : -1])

    def update(self, said: list[int]) -> None:
        """Takes what the target says after each token of :meth:`chain`."""
        # After the right ones it says the answer, which filling the cache has shown.
        self._add(self._fixed[: self._right + 1] + said)

    def _add(self, state: list[int]) -> None:
        self.states.append(state)
        self._right = prefix(state, self._fixed)
        if self._right == len(self._fixed) - 1:  # one wrong token, the last: nothing is left to compute
            self._add(list(self._fixed))


class _Answer:
    """An answer under way."""

    def __init__(self, slot: int, blocks: Blocks, ties: list[int], lost: set[int]) -> None:
        self.slot = slot
        start = len(blocks.text.prompt)
        self._blocks = [
            None if at in lost else _Block(slot, start + at * blocks.size, blocks.fixed(at), blocks.initial(at))
            for at in range(len(blocks))
        ]
        self._given, self._ties = blocks, ties

    @property
    def unfinished(self) -> list[_Block]:
        return [block for block in self._blocks if block is not None and block.rows]

    @property
    def rows(self) -> int:
        """Of its next forward."""
        return sum(block.rows for block in self.unfinished)

    @property
    def run(self) -> Run:
        return Run(self._given, [None if block is None else block.states for block in self._blocks], self._ties)
