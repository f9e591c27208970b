"""Jacobi Forcing decoding: several blocks at once, and rejected guesses recycled (the authors' post, 2025).

Vanilla is Jacobi decoding block by block. Multiblock (M) lets the next block start before the current one is finished;
rejection recycling (R) verifies what followed the last verified token in earlier drafts. Both together are MR.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import model_validator

from specbench import decoding
from specbench.decoding import Context, Kind, StepResult, TokenTree, option
from specbench.methods.jf import released
from specbench.methods.jf.blocks import Blocks


class Options(decoding.Options):
    """Options of Jacobi Forcing decoding."""

    block_size: int = option(64, "n", help="tokens of a block, the verified first one included", ge=1, le=512)
    num_blocks: int = option(
        2, "K", "k", help="most blocks at a time: the current one, and others drafted ahead", ge=1, le=16
    )
    activation_ratio: float = option(
        0.85, "r", help="share of the newest block that is right before the next one starts", ge=0, le=1
    )
    pool_size: int = option(4, "pool", help="chains verified together: the draft and recycled ones", ge=1, le=64)
    multiblock: bool = option(True, help="draft ahead of the current block (M)")
    recycling: bool = option(True, help="verify recycled guesses together with the draft (R)")
    init: Kind = option(
        "context", help="fresh guesses: sampled from prompt and output, from the vocabulary, or the pad token"
    )
    prefill_draft: bool = option(True, help="send the first guesses with the prompt: one free Jacobi update")
    variant: Literal["paper", "released"] = option(
        "paper", help="paper: keep blocks ahead and guesses; released: as the published code does, call by call"
    )

    @property
    def blocks(self) -> int:
        """Most blocks at a time."""
        return self.num_blocks if self.multiblock else 1

    @property
    def chains(self) -> int:
        """Most chains verified together."""
        return self.pool_size if self.recycling else 1

    @model_validator(mode="after")
    def _released_runs(self) -> Options:
        if self.variant == "released" and self.blocks > 2:
            raise ValueError("variant=released takes num_blocks 1 or 2: with more, the published code fails at times")
        return self


class Decoder(decoding.Decoder):
    """Draft by one of the two variants."""

    def __init__(self, options: Options, context: Context) -> None:
        made = Blocks if options.variant == "paper" else released.Calls
        self._drafter = made(options, context)

    @staticmethod
    def max_rows(options: Options) -> int:
        n = options.block_size
        return n * options.blocks + (n - 1) * (options.chains - 1)

    def begin(self, prompt: Sequence[int]) -> TokenTree | None:
        return self._drafter.begin(prompt)

    def observe(self, result: StepResult) -> None:
        self._drafter.observe(result)

    def draft(self) -> TokenTree:
        return self._drafter.draft()

    def measures(self, kept: int, stopped: bool) -> Mapping[str, float]:
        return self._drafter.measures()
