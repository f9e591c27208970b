"""Random trees that hide a given text among their branches (wild trees), and a decoder that drafts them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from specbench import decoding
from specbench.decoding import Context, Method, StepResult, TokenTree, option

_LONGEST = 6  # largest number of tokens that one tree hides


def hiding_tree(
    rng: random.Random, root: int, continuation: Sequence[int], vocab: int, noise: int, *, apart: bool = False
) -> TokenTree:
    """Make a tree with ``continuation`` as one path from its root, its rows scattered among ``noise`` random rows.

    Noise rows can be anywhere, also below the hidden path. Some repeat the token of a hidden sibling, so that a path
    exists twice, and some are marked as never accepted.

    Args:
        rng: source of all choices.
        root: token of row 0.
        continuation: tokens below it that must be reachable.
        vocab: number of token ids.
        noise: number of random rows.
        apart: put a noise row before each hidden row, so that the path cannot be the first rows.
    """
    tokens, parents, accept = [root], [-1], [True]
    last, placed = 0, 0  # the deepest hidden row so far, and the number of hidden rows
    if apart:
        order = [False, True] * len(continuation) + [False] * (noise - len(continuation))
    else:
        order = [True] * len(continuation) + [False] * noise
        rng.shuffle(order)
    for hidden in order:
        if hidden:
            parent, token, allowed = last, continuation[placed], True
            last, placed = len(tokens), placed + 1
        else:
            parent, token, allowed = rng.randrange(len(tokens)), rng.randrange(vocab), rng.random() < 0.75
            if parent == last and placed < len(continuation) and rng.random() < 0.5:
                token = continuation[placed]
        tokens.append(token)
        parents.append(parent)
        accept.append(allowed)
    return TokenTree(tokens, parents, accept)


class Options(decoding.Options):
    """Options of wild trees."""

    rows: int = option(64, help="rows of a tree at most, root included", ge=2, le=512)


class Decoder(decoding.Decoder):
    """Decoder that drafts trees of random size and shape, which contain the next tokens of the expected text."""

    def __init__(self, options: Options, context: Context) -> None:
        self._rows, self._rng, self._vocab = options.rows, context.rng, context.vocab_size
        self._texts: Mapping[tuple[int, ...], Sequence[int]] = context.shared
        self._expected: Sequence[int] = ()
        self._emitted: list[int] = []

    @staticmethod
    def max_rows(options: Options) -> int:
        return options.rows

    def begin(self, prompt: Sequence[int]) -> None:
        self._expected = self._texts[tuple(prompt)]

    def observe(self, result: StepResult) -> None:
        self._emitted += result.emitted

    def draft(self) -> TokenTree:
        at = len(self._emitted)
        # After the text has left the expected one, there are no tokens to hide.
        known = self._expected[at:] if self._emitted == list(self._expected[:at]) else ()
        hidden = known[: self._rng.randint(0, min(_LONGEST, self._rows - 1))]
        most = self._rows - 1 - len(hidden)
        noise = self._rng.randint(min(len(hidden), most), most)
        apart = noise >= len(hidden) and self._rng.random() < 0.5
        return hiding_tree(self._rng, self._emitted[-1], hidden, self._vocab, noise, apart=apart)


def wild_method(rows: int) -> Method:
    """Return the decoder as a method of a session; set its texts with ``dataclasses.replace(method, shared=…)``."""
    return Method("wild", "wild", Options(rows=rows), True, Decoder)
