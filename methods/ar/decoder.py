"""Autoregressive decoding, the baseline: the tree is only the root. It runs on the same engine as every method."""

from __future__ import annotations

from specbench import decoding
from specbench.decoding import Context, StepResult, TokenTree


class Options(decoding.Options):
    """AR has no options."""


class Decoder(decoding.Decoder):
    """Emit one token per forward."""

    def __init__(self, options: Options, context: Context) -> None:
        self._last = -1

    @staticmethod
    def max_rows(options: Options) -> int:
        return 1

    def observe(self, result: StepResult) -> None:
        self._last = result.emitted[-1]

    def draft(self) -> TokenTree:
        return TokenTree.chain([self._last])
