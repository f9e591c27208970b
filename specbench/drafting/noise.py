"""Fresh guesses for positions of which nothing is known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from specbench.decoding import Context

Kind = Literal["context", "uniform", "pad"]


class Noise:
    """Draws guesses.

    Args:
        kind: ``context`` draws with replacement from prompt and output ("ahead noise", Wang et al. 2024, §3.3; also
            CLLM's and Jacobi Forcing's fresh blocks), ``uniform`` from the vocabulary, ``pad`` repeats the pad token.
        context: brings vocabulary, pad token and the request's own generator.
    """

    def __init__(self, kind: Kind, context: Context) -> None:
        self._kind = kind
        self._context = context
        self.seen: list[int] = []  # prompt and output, oldest first

    def see(self, tokens: Iterable[int]) -> None:
        """Adds tokens of the prompt or the output."""
        self.seen += tokens

    def draw(self, count: int) -> list[int]:
        """``count`` guesses, independent of each other."""
        if self._kind == "context":
            return self._context.rng.choices(self.seen, k=count)
        if self._kind == "uniform":
            return [self._context.rng.randrange(self._context.vocab_size) for _ in range(count)]
        return [self._context.pad_id] * count
