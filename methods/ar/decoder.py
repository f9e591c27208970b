"""Autoregressive decoding: the tree is the root alone. The baseline runs through the same engine as every method."""

from __future__ import annotations

from collections.abc import Sequence

from specbench.decoding import Context
from specbench.engine.tree import StepResult, TokenTree
from specbench.options import Options as BaseOptions


class Options(BaseOptions):
    """AR has none."""


class Decoder:
    """Emits one token a forward."""

    draft_forwards = 0

    def __init__(self, options: Options, context: Context) -> None:
        self._last = -1

    @staticmethod
    def max_rows(options: Options) -> int:
        return 1

    def begin(self, prompt: Sequence[int]) -> None:
        return None

    def observe(self, result: StepResult) -> None:
        self._last = result.emitted[-1]

    def draft(self) -> TokenTree:
        return TokenTree.chain([self._last])
