"""Guess the token after the next one from the last logits; n-grams extend each guess (LogitSpec, Liu et al. 2025).

arXiv:2507.01449. The runners-up of the logits that gave the last token often contain the next token. Each runner-up
begins a branch under the last token, continued with what followed it earlier in the text. One more branch is prompt
lookup.
"""

from __future__ import annotations

from collections.abc import Sequence

from specbench import decoding
from specbench.decoding import (
    Branches,
    Context,
    MethodName,
    NgramIndex,
    StepResult,
    TokenTree,
    option,
    retrieve_option,
    stop_option,
)

#: Length of a branch by the rank of its first token: (up to this rank, tokens); beyond the last pair, one token.
_LENGTHS = ((8, 4), (32, 3))


class Options(decoding.Options):
    """Options of LogitSpec; the defaults are those of the released code."""

    max_ngram: int = option(3, help="most tokens to match: shorter ones are tried when longer ones fail", ge=1, le=16)
    draft_length: int = option(20, "k", help="tokens copied after the last token", ge=1, le=511)
    budget: int = option(64, "B", help="rows of the tree at most, root included, and candidates", ge=2, le=512)
    retrieve: MethodName | None = retrieve_option()
    stop: bool = stop_option()


class Decoder(decoding.Decoder):
    """Keep an index of prompt and output, and the best tokens of the last logits."""

    def __init__(self, options: Options, context: Context) -> None:
        self._options = options
        self._text = NgramIndex(options.max_ngram)
        self._candidates: list[int] = []

    @staticmethod
    def max_rows(options: Options) -> int:
        return options.budget

    @staticmethod
    def top_k(options: Options) -> int:
        return options.budget

    def begin(self, prompt: Sequence[int]) -> None:
        self._text.extend(prompt)

    def observe(self, result: StepResult) -> None:
        assert result.top is not None
        self._text.extend(result.emitted)
        self._candidates = result.top[1][result.path[-1], : self._options.budget].tolist()

    def draft(self) -> TokenTree:
        root, room = self._text.tokens[-1], self._options.budget - 1
        tree, origins = Branches(root), ["guess"]
        copied = self._following(())[:room]
        tree.add(copied)
        origins += ["lookup"] * (len(tree) - 1)
        room -= len(copied)
        for rank, token in enumerate(self._candidates):
            if not room:
                break
            if token == root:
                continue
            branch = [token, *self._following((token,))][: min(_length(rank), room)]
            before = len(tree)
            tree.add(branch)
            new = len(tree) - before  # rows at the branch's end that no other branch shares
            origins += ["guess", *["lookup"] * (len(branch) - 1)][len(branch) - new :]
            room -= len(branch)
        return tree.tree(origins=origins)

    def instead(self, tree: TokenTree) -> None:
        pass  # only the result of a forward matters, whatever tree was used

    def _following(self, guess: tuple[int, ...]) -> Sequence[int]:
        """The tokens after an earlier occurrence of the text's end plus a guess, for the longest n-gram that occurred.

        Of several occurrences, use the one followed by most tokens (up to ``draft_length``), among equal ones the last.
        """
        text, length = self._text.tokens, self._options.draft_length
        last = (*text[-self._options.max_ngram :], *guess)[-self._options.max_ngram :]
        for size in range(len(last), 0, -1):
            ends = self._text.ends(last[-size:])
            full = next((end for end in reversed(ends) if end + length <= len(text)), None)
            end = full if full is not None else ends[0] if ends else len(text)
            if end < len(text):
                return text[end : end + length]
        return ()


def _length(rank: int) -> int:
    return next((length for limit, length in _LENGTHS if rank <= limit), 1)
