"""States that need no forward: what a block is begun with, JF's artificial trajectories, CLLM's augmentation.

All are drawn by (seed, prompt id, block), so that they depend neither on the order of the answers nor on what shares a
forward with them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from specbench.decoding import Context
from specbench.drafting.convergence import State
from specbench.drafting.noise import Kind, Noise
from specbench.training.recipe import Text

NEAR = 10  # blocks of context that artificial noise is drawn from (JF, released code of stage 1)


class Blocks:
    """The blocks of one answer, and noise for them.

    Args:
        text: the answer and its prompt.
        size: n.
        kind: of the noise.
        vocab_size: token ids are below this.
        pad_id: what noise of kind ``pad`` repeats.
        seed: of the noise.
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
        """The fixed point of a block; the last one ends with the answer."""
        return list(self.text.answer[block * self.size : (block + 1) * self.size])

    def initial(self, block: int) -> list[int]:
        """What a decoder has when the block begins: its first token, then guesses (CLLM §3.1; JF §4.1, stage 2).

        Noise of kind ``context`` comes from prompt and answer so far, that first token included.
        """
        first, *rest = self.fixed(block)
        noise = self._noise(block, [*self.text.prompt, *self.text.answer[: block * self.size + 1]])
        return [first, *noise.draw(len(rest))]

    def artificial(self, block: int) -> list[list[int]]:
        """States of a made-up trajectory, which becomes right from left to right, a token a state (JF §4.1, stage 1).

        The rightmost n - 1, n - 2, …, 0 tokens are noise, drawn anew for every state; of kind ``context`` it comes from
        the ids just before the block, :data:`NEAR` blocks of them at most.
        """
        fixed = self.fixed(block)
        before = [*self.text.prompt, *self.text.answer[: block * self.size]]
        noise = self._noise(block, before[-NEAR * self.size :])
        return [fixed[:right] + noise.draw(len(fixed) - right) for right in range(1, len(fixed) + 1)]

    def augmented(self, block: int, states: Sequence[State], *, replacing: bool) -> list[list[int]]:
        """States of which some wrong tokens are put right (CLLM, ``--use_aug``).

        In every state but the last two, half as many as are wrong, never the first wrong one.

        Args:
            block: whose states.
            states: ending with the fixed point.
            replacing: draw them with replacement as the released code does, so that fewer are put right than said.
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
