"""Prompt lookup decoding: draft what followed the last tokens earlier in the text (Saxena 2023).

The draft is copied from prompt and output; no training, and no state except the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import model_validator

from specbench import decoding
from specbench.decoding import (
    Branches,
    Context,
    MethodName,
    NgramIndex,
    StepResult,
    TokenTree,
    fallback_option,
    option,
    stop_option,
)


class Options(decoding.Options):
    """Options of prompt lookup; the defaults are the published settings."""

    max_ngram: int = option(3, help="most tokens to match at the end of the text", ge=1, le=16)
    min_ngram: int = option(1, help="fewest tokens to match: shorter ones are tried when longer ones fail", ge=1, le=16)
    draft_length: int = option(10, "k", help="tokens copied per match", ge=1, le=511)
    branches: int = option(1, help="number of different continuations to draft, longest match first", ge=1, le=64)
    order: Literal["earliest", "latest"] = option(
        "earliest", help="which of several equally long matches is used first"
    )
    full_only: bool = option(True, help="leave out matches that fewer than draft_length tokens follow")
    fallback: MethodName | None = fallback_option("where nothing matches")
    stop: bool = stop_option()

    @model_validator(mode="after")
    def _ordered(self) -> Options:
        if self.min_ngram > self.max_ngram:
            raise ValueError(f"min_ngram {self.min_ngram} is above max_ngram {self.max_ngram}")
        return self


class Decoder(decoding.Decoder):
    """Keep an index of prompt and output."""

    def __init__(self, options: Options, context: Context) -> None:
        self._options = options
        self._text = NgramIndex(options.max_ngram)

    @staticmethod
    def max_rows(options: Options) -> int:
        return 1 + options.branches * options.draft_length

    def begin(self, prompt: Sequence[int]) -> None:
        self._text.extend(prompt)

    def observe(self, result: StepResult) -> None:
        self._text.extend(result.emitted)

    def draft(self) -> TokenTree:
        branches = Branches(self._text.tokens[-1])
        found: set[tuple[int, ...]] = set()
        for continuation in self._continuations():
            if continuation not in found:
                found.add(continuation)
                branches.add(continuation)
                if len(found) == self._options.branches:
                    break
        return branches.tree(origins="lookup")

    def matched(self) -> bool:
        return True  # a draft exists only after a match

    def instead(self, tree: TokenTree) -> None:
        pass  # only emitted tokens count

    def _continuations(self) -> Iterator[tuple[int, ...]]:
        """The tokens after earlier occurrences of the last tokens: longest match first, then in the chosen order."""
        tokens, length = self._text.tokens, self._options.draft_length
        for size in range(self._options.max_ngram, self._options.min_ngram - 1, -1):
            ends = self._text.before(size)
            for end in ends if self._options.order == "earliest" else reversed(ends):
                if not self._options.full_only or end + length <= len(tokens):
                    yield tuple(tokens[end : end + length])
