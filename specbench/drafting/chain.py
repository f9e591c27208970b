"""The Jacobi chain: guesses in a row, all refreshed by each forward (Santilli et al. 2023, Algorithm 2).

A forward over the chain ``d`` gives ``g[i]``, the target's token after ``d[0..i]``. With ``m`` matches the engine
commits ``d[0..m]``; ``g[m]`` is then known to be right, and ``g[m+1:]`` are the next guesses: the Jacobi update. A
token that came out right behind a wrong one lives on only if the target says it again.
"""

from __future__ import annotations

from specbench.drafting.noise import Noise
from specbench.engine.tree import StepResult, TokenTree


class JacobiChain:
    """A chain of at most ``size`` tokens.

    Args:
        size: tokens of a full chain, the verified first one included.
        noise: source of fresh guesses; it has seen the prompt, and everything emitted before each :meth:`update`.
        sliding: refill the chain after every forward, instead of finishing a block before the next begins.
    """

    def __init__(self, size: int, noise: Noise, *, sliding: bool = False) -> None:
        self._size = size
        self._noise = noise
        self._sliding = sliding
        self.tokens: list[int] = []  # tokens[0] is the last emitted token; empty before the prefill
        self._fresh = 0  # tokens at its end that no forward has refreshed yet

    def with_prompt(self, last: int) -> TokenTree:
        """Guesses to send along with a prompt that ends in ``last``: they come back as the first chain."""
        return TokenTree.chain([last, *self._noise.draw(self._size - 1)], drafts_only=True)

    def update(self, result: StepResult) -> bool:
        """Takes a forward over :meth:`tree`; True when a block is finished and a new one begun."""
        accepted = len(result.path)
        block_done = accepted == len(result.next_tokens)
        if not self.tokens:  # the prefill: every row gives a token of the first chain
            self.tokens = list(result.next_tokens)
        elif self._sliding:
            self.tokens = [result.emitted[-1], *result.next_tokens[accepted:]]
        else:  # the last row's own next token is outside the block, unless it is the bonus of a path that reached it
            self.tokens = [result.emitted[-1], *result.next_tokens[accepted:-1]]
        self._fresh = self._size - len(self.tokens) if self._sliding or block_done else 0
        if self._fresh:
            self.tokens += self._noise.draw(self._fresh)
        return block_done

    def tree(self) -> TokenTree:
        """The chain as a tree without branches."""
        guesses = len(self.tokens) - self._fresh
        return TokenTree.chain(self.tokens, origins=["guess"] * guesses + ["noise"] * self._fresh)
