"""Compute the Jacobi states of known answers: trajectories from forwards over many blocks, and artificial states.

The answer is known, so no block has to wait for the block before it: the text is cached once, and every forward
advances as many blocks of any answers as fit. The states equal those of ``jacobi`` with ``window=block`` and ``cllm``:
``x'[i + 1]`` is the target's next token after ``x[0..i]``, for all i at once (Santilli et al. 2023, Algorithm 2; CLLM
§3.1). Noise is determined by (seed, prompt id, block).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from specbench.decoding import Context, Kind, Noise, State, TokenTree, prefix
from specbench.engine import Chain, Engine, Sampling, next_tokens
from specbench.models import LoadedModel
from specbench.training.data.trajectory_folder import Trajectory
from specbench.training.recipe import Text

# Forwards are padded to multiples of this many rows: oneDNN compiles a kernel for every row count, which takes as long
# as a small forward, and caches it, which takes some MB.
_FULL = 16

# Most rows of a forward over one sequence: a longer answer is split.
_MOST_ROWS = 4608


@dataclass(frozen=True)
class Run:
    """Jacobi states of one answer.

    Attributes:
        states: [block][state], from the initial state to the fixed point; None for a block that was given up.
        ties: positions of the answer where the forward here emits another token than the answer has, because two scores
            are so close that their order depends on the shape of the forward. The answer is not a fixed point there.
    """

    blocks: Blocks
    states: list[list[list[int]] | None]
    ties: list[int]


class Jacobi:
    """Run the blocks of answers to their fixed points.

    Args:
        sampling: settings with which the answers were decoded. Sampling noise is fixed per position, so the
            trajectories of sampled answers are deterministic too.
        texts: must include the longest prompt and the longest answer of later :meth:`run` calls.
        rows: most rows of a forward, except for a single larger block.
    """

    def __init__(self, model: LoadedModel, sampling: Sampling, texts: Sequence[Text], rows: int) -> None:
        longest = max(len(text.answer) for text in texts)
        self._rows = rows
        self._tree_rows = min(_MOST_ROWS - _FULL, longest)
        # A block needs half of its rows on average, and answers differ in length: 3 × instead of 2 ×.
        slots = 1 + -(-3 * rows // longest)
        self._engine = Engine(
            model.model,
            slots=min(slots, len(texts)),
            capacity=max(len(text.prompt) + len(text.answer) for text in texts),
            max_rows=self._tree_rows + _FULL,
            sampling=sampling,
        )

    def close(self) -> None:
        """Close the engine and release the model."""
        self._engine.close()

    def run(self, answers: Iterable[Blocks]) -> Iterator[Run]:
        """Yield the states of each answer as it is finished."""
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
        # A tie at a block's first token does not matter: that token is given, not computed.
        lost = {at // blocks.size for at in ties if at % blocks.size}
        return _Answer(slot, blocks, ties, lost)

    def _cache(self, slot: int, text: Text) -> list[int]:
        """Fill a slot with prompt and answer; return the positions where the target emits another token."""
        ties, done, before = [], 0, list(text.prompt)
        while done < len(text.answer):
            part = list(text.answer[done : done + self._tree_rows])
            filling = [0] * _missing(len(before) - 1 + len(part))
            tokens = [before[-1], *part[:-1], *filling]
            accept = [True] * len(part) + [False] * len(filling)
            result = self._engine.prefill(slot, before, TokenTree(tokens, range(-1, len(tokens) - 1), accept))
            taken = len(result.path)  # up to a tie; the rest of the answer is prefilled again like a prompt
            ties += [done + at for at in range(taken) if result.next_tokens[at] != part[at]]
            done += taken
            before = [text.answer[done - 1]]
        return ties

    def _advance(self, blocks: Sequence[_Block]) -> None:
        """Run one forward for as many of the first ``blocks`` as fit, so that the oldest answers finish first."""
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
            for block, computed in zip(chosen, next_tokens(self._engine, chains), strict=False):
                block.update(computed)


def _missing(rows: int) -> int:
    return -rows % _FULL


class _Block:
    """A block on its way to its fixed point."""

    def __init__(self, slot: int, start: int, fixed: list[int], initial: list[int]) -> None:
        self._slot, self._start, self._fixed = slot, start, fixed
        self.states: list[list[int]] = []
        self._add(initial)

    @property
    def rows(self) -> int:
        """Rows in the block's next forward; 0 when it is finished."""
        return max(0, len(self._fixed) - 1 - self._right)

    def chain(self) -> Chain:
        """Return the block's rows of a forward: from its first wrong token on, without its last token.

        The last token's row would compute the first token of the next block.
        """
        return Chain(self._slot, self._start + self._right, self.states[-1][self._right : -1])

    def update(self, computed: list[int]) -> None:
        """Add a state from the target's next tokens after each token of :meth:`chain`."""
        # After correct tokens the target emits the answer's own tokens; :meth:`Jacobi._cache` has verified that.
        self._add(self._fixed[: self._right + 1] + computed)

    def _add(self, state: list[int]) -> None:
        self.states.append(state)
        self._right = prefix(state, self._fixed)
        if self._right == len(self._fixed) - 1:  # only the last token is wrong: the next state is the fixed point
            self._add(list(self._fixed))


class _Answer:
    """An answer whose blocks are being run."""

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
        """Rows of the answer's unfinished blocks in the next forward."""
        return sum(block.rows for block in self.unfinished)

    @property
    def run(self) -> Run:
        return Run(self._given, [None if block is None else block.states for block in self._blocks], self._ties)


NEAR = 10  # blocks of context from which artificial noise is sampled (JF, released code of stage 1)


class Blocks:
    """The blocks of one answer, and noise for them.

    Args:
        vocab_size: token ids are below this.
        pad_id: token of noise of kind ``pad``.
    """

    def __init__(self, text: Text, size: int, kind: Kind, vocab_size: int, pad_id: int, seed: int) -> None:
        self.text = text
        self.size = size
        self._kind = kind
        self._vocab_size, self._pad_id = vocab_size, pad_id
        self._seed = seed

    def __len__(self) -> int:
        return -(-len(self.text.answer) // self.size)

    def fixed(self, block: int) -> list[int]:
        """Return the fixed point of a block; the last block ends with the answer."""
        return list(self.text.answer[block * self.size : (block + 1) * self.size])

    def initial(self, block: int) -> list[int]:
        """Return the state with which a decoder begins a block: its first token, then guesses (CLLM §3.1; JF §4.1).

        Noise of kind ``context`` is sampled from the prompt and the answer up to the block's first token.
        """
        first, *rest = self.fixed(block)
        noise = self._noise(block, [*self.text.prompt, *self.text.answer[: block * self.size + 1]])
        return [first, *noise.draw(len(rest))]

    def artificial(self, block: int) -> list[list[int]]:
        """Return an artificial trajectory: each state has one more correct token on the left (JF §4.1, stage 1).

        The rightmost n - 1, n - 2, …, 0 tokens are noise, sampled anew for every state. Noise of kind ``context`` comes
        from the ids just before the block, at most :data:`NEAR` blocks of them.
        """
        fixed = self.fixed(block)
        before = [*self.text.prompt, *self.text.answer[: block * self.size]]
        noise = self._noise(block, before[-NEAR * self.size :])
        return [fixed[:right] + noise.draw(len(fixed) - right) for right in range(1, len(fixed) + 1)]

    def augmented(self, block: int, states: Sequence[State], *, replacing: bool) -> list[list[int]]:
        """Return the states with some wrong tokens corrected (CLLM, ``--use_aug``).

        In every state but the last two, half of the wrong tokens are corrected, but never the first wrong one.

        Args:
            states: trajectory that ends with the fixed point.
            replacing: sample the tokens with replacement, as in the released code; fewer than half are then corrected.
        """
        rng = random.Random(f"{self._seed}/{self.text.id}/{block}/augment")
        final = states[-1]
        changed = [list(state) for state in states]
        for state in changed[:-2]:
            wrong = [at for at, (token, right) in enumerate(zip(state, final, strict=True)) if token != right]
            later, count = wrong[1:], len(wrong) // 2
            for at in rng.choices(later, k=count) if replacing else rng.sample(later, count):
                state[at] = final[at]
        return changed

    def _noise(self, block: int, seen: Sequence[int]) -> Noise:
        rng = random.Random(f"{self._seed}/{self.text.id}/{block}")
        noise = Noise(self._kind, Context(self._vocab_size, self._pad_id, rng))
        noise.see(seen)
        return noise


def block_sizes(trajectory: Trajectory) -> list[int]:
    """Return the number of answer tokens in each block; the rest of the last block is padding."""
    n, total = trajectory.block_size, len(trajectory.answer)
    return [min(n, total - start) for start in range(0, total, n)]


def cut(trajectory: Trajectory, limit: int, streams: int) -> Trajectory:
    """Drop last blocks of a trajectory until prompt plus ``streams`` times the answer has at most ``limit`` tokens.

    The first block always stays.
    """
    n = trajectory.block_size
    blocks = max(1, (limit - len(trajectory.prompt)) // (streams * n))
    if len(trajectory.prompt) + streams * len(trajectory.answer) <= limit:
        return trajectory
    return replace(trajectory, answer=trajectory.answer[: blocks * n], blocks=trajectory.blocks[:blocks])


def stream(trajectory: Trajectory, chosen: Sequence[int]) -> list[int]:
    """Concatenate the blocks, each in its state from ``chosen``, into one text of the answer's length."""
    parts = zip(trajectory.blocks, chosen, block_sizes(trajectory), strict=True)
    return [token for states, at, size in parts for token in states[at][:size]]
