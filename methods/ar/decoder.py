"""Autoregressive decoding: the tree is the root alone. The baseline runs through the same engine as every method."""

from __future__ import annotations

from specbench import decoding
from specbench.decoding import Context, StepResult, TokenTree


class Options(decoding.Options):
    """AR has none."""


class Decoder(decoding.Decoder):
    """Emits one token a forward."""

    def __init__(self, options: Options, context: Context) -> None:
        self._last = -1

    @staticmethod
    def max_rows(options: Options) -> int:
        return 1

    def observe(self, result: StepResult) -> None:
        self._last = result.emitted[-1]

    def draft(self) -> TokenTree:
        return TokenTree.chain([self._last])
