"""Echo: the last token, again and again. Right in runs of blanks, rulers of dashes, and models that are stuck."""

from __future__ import annotations

from collections.abc import Mapping

from specbench import decoding
from specbench.decoding import Context, StepResult, TokenTree, option


class Options(decoding.Options):
    """Options of echo."""

    length: int = option(8, "n", help="times the last token is guessed", ge=1, le=511)


class Decoder(decoding.Decoder):
    """Keeps the last token, and how many guesses came true."""

    def __init__(self, options: Options, context: Context) -> None:
        self._length = options.length
        self._last = -1
        self._echoed = 0

    @staticmethod
    def max_rows(options: Options) -> int:
        return 1 + options.length

    def observe(self, result: StepResult) -> None:
        self._last = result.emitted[-1]
        self._echoed += len(result.path) - 1

    def draft(self) -> TokenTree:
        return TokenTree.chain([self._last] * (1 + self._length))

    def measures(self, kept: int, stopped: bool) -> Mapping[str, float]:
        return {"echoed": self._echoed}
