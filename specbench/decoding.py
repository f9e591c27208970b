"""The decoder protocol: a method is its drafting, and nothing else (DESIGN §2).

The runner owns the loop, the stop rule, the clock and the count; the engine owns the forward, acceptance and the KV. A
decoder proposes a token tree, sees what the target said, and proposes the next one. One object serves one sequence.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from specbench.engine.tree import StepResult, TokenTree
from specbench.options import Options


@dataclass(frozen=True)
class Context:
    """What a decoder may know besides its tokens.

    Attributes:
        vocab_size: token ids are below this.
        pad_id: a token id that stands for nothing.
        rng: source of random drafts, seeded per (seed, prompt, repeat): a run repeats exactly, and so does a method
            that runs under two labels.
    """

    vocab_size: int
    pad_id: int
    rng: random.Random


class Decoder(Protocol):
    """Drafts for one sequence. Implemented in ``methods/<name>/decoder.py``, described by ``method.toml``."""

    #: Forwards of a draft model so far; 0 for methods that draft without one.
    draft_forwards: int

    def __init__(self, options: Any, context: Context) -> None: ...

    @staticmethod
    def max_rows(options: Any) -> int:
        """Rows of the largest tree these options can draft, root included. Known before any model is loaded."""
        ...

    def begin(self, prompt: Sequence[int]) -> TokenTree | None:
        """Takes the prompt; may return guesses to send along with it, as draft-only rows under its last token."""
        ...

    def observe(self, result: StepResult) -> None:
        """Takes what a forward over the last tree decided, the prefill's first token included."""
        ...

    def draft(self) -> TokenTree:
        """The next tree; its root is the last emitted token."""
        ...


@dataclass(frozen=True)
class Method:
    """A method with its options, ready to make decoders.

    Attributes:
        name: registered name.
        label: how a run names it; the name, unless one method runs with several settings.
        options: validated options.
        lossless: whether it claims to emit what AR emits.
        decoder: its class.
    """

    name: str
    label: str
    options: Options
    lossless: bool
    decoder: Any

    @property
    def max_rows(self) -> int:
        """Rows of its largest tree."""
        return int(self.decoder.max_rows(self.options))

    def new(self, context: Context) -> Decoder:
        """A decoder for one sequence."""
        decoder: Decoder = self.decoder(self.options, context)
        return decoder
