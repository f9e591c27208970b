"""The decoder protocol: a method is its drafting, and nothing else (DESIGN §2).

The runner owns the loop, the stop rule, the clock and the count; the engine owns the forward, acceptance and the KV. A
decoder proposes a token tree, sees what the target said, and proposes the next one. One object serves one sequence.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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


class Decoder(ABC):
    """Drafts for one sequence. Base of the class in ``methods/<name>/decoder.py``, described by ``method.toml``.

    Args:
        options: the method's own :class:`~specbench.options.Options`.
        context: what it may know besides its tokens.
    """

    #: Forwards of a draft model so far; stays 0 for methods that draft without one.
    draft_forwards: int = 0

    @abstractmethod
    def __init__(self, options: Any, context: Context) -> None: ...

    @staticmethod
    @abstractmethod
    def max_rows(options: Any) -> int:
        """Rows of the largest tree these options can draft, root included. Known before any model is loaded."""

    @staticmethod
    def top_k(options: Any) -> int:
        """How many of each row's best tokens the method wants to see in ``StepResult.top``; 0 is none."""
        return 0

    def begin(self, prompt: Sequence[int]) -> TokenTree | None:
        """Takes the prompt; may return guesses to send along with it, as draft-only rows under its last token."""
        return None

    @abstractmethod
    def observe(self, result: StepResult) -> None:
        """Takes what a forward over the last tree decided, the prefill's first token included."""

    @abstractmethod
    def draft(self) -> TokenTree:
        """The next tree; its root is the last emitted token."""

    def measures(self, kept: int, stopped: bool) -> Mapping[str, float]:
        """Figures of the method's own about one finished request, by the names of ``[measures]`` in ``method.toml``.

        Asked for after the clock has stopped. A run reports each one's mean over requests.

        Args:
            kept: tokens of the answer, up to and including its stop.
            stopped: the answer ended by itself, not at the token budget.
        """
        return {}


@dataclass(frozen=True)
class Method:
    """A method with its options, ready to make decoders.

    Attributes:
        name: registered name.
        label: how a run names it; the name, unless one method runs with several settings.
        options: validated options.
        lossless: whether it claims to emit what AR emits.
        decoder: its class.
        measures: what its own figures are, by name.
    """

    name: str
    label: str
    options: Options
    lossless: bool
    decoder: Any
    measures: Mapping[str, str] = field(default_factory=dict)

    @property
    def max_rows(self) -> int:
        """Rows of its largest tree."""
        return int(self.decoder.max_rows(self.options))

    @property
    def top_k(self) -> int:
        """Best tokens of each row that its decoders ask for."""
        return int(self.decoder.top_k(self.options))

    def new(self, context: Context) -> Decoder:
        """A decoder for one sequence."""
        decoder: Decoder = self.decoder(self.options, context)
        return decoder
