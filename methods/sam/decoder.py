"""SAM-Decoding: a suffix automaton finds the longest suffix of the text that occurred before (Hu et al. 2024).

arXiv:2411.10666. The draft is what followed the first occurrence of this suffix in the text, or in a corpus if the
match there is longer. A longer match gives a longer draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specbench import decoding
from specbench.decoding import (
    SEEN,
    SEGMENT,
    Context,
    MethodName,
    StepResult,
    Target,
    TokenTree,
    check_corpus,
    fallback_option,
    option,
    stop_option,
)
from specbench.methods.sam import corpus
from specbench.methods.sam.automaton import NO_MATCH, Automaton
from specbench.methods.sam.corpus import Corpus


class Options(decoding.Options):
    """Options of SAM-Decoding; the defaults are those of the released code."""

    draft_length: int = option(40, "k", help="tokens drafted at most", ge=1, le=511)
    alpha: float = option(4.0, help="most drafted tokens per matching token", gt=0, le=64)
    full_only: bool = option(
        True, help="leave out matches whose first occurrence is followed by fewer than draft_length tokens"
    )
    corpus: str | None = option(None, help="file of further texts to look up: .txt, or .jsonl with a text in each line")
    len_bias: int = option(
        5, help="tokens by which a match in the corpus must be longer than one in the text", ge=0, le=512
    )
    fallback: MethodName | None = fallback_option("when fewer than min_match tokens match")
    stop: bool = stop_option()
    min_match: int = option(
        5, help="with fallback: shortest match for which the lookup's own draft is used", ge=0, le=512
    )


class Decoder(decoding.Decoder):
    """Keep an automaton of prompt and output, and follow the text through the corpus."""

    def __init__(self, options: Options, context: Context) -> None:
        self._options = options
        self._vocab = context.vocab_size
        self._text = Automaton()
        self._corpus: Corpus | None = context.shared
        self._in_corpus = NO_MATCH
        self._match = 0  # matching tokens of the last draft
        self._drafts = self._matching = 0
        self._prompt = 0
        self._stretches: list[int] = []  # for each prefix of the text, its longest suffix in the corpus

    @staticmethod
    def max_rows(options: Options) -> int:
        return 1 + options.draft_length

    @staticmethod
    def check(options: Options, model: str) -> None:
        if options.corpus is not None:
            check_corpus(options.corpus, "sam")

    @staticmethod
    def prepare(options: Options, target: Target) -> Corpus | None:
        if options.corpus is None:
            return None
        path = options.corpus
        return target.once(("sam", path), lambda: corpus.load(path, target))

    @staticmethod
    def weights(shared: Corpus | None) -> Mapping[str, str]:
        return shared.weights if shared else {}

    def begin(self, prompt: Sequence[int]) -> None:
        self._see(prompt)
        self._prompt = len(prompt)

    def observe(self, result: StepResult) -> None:
        self._see(result.emitted)

    def draft(self) -> TokenTree:
        room = self._options.draft_length if self._options.full_only else 1
        match = self._text.with_room(self._text.repeated(), room)
        length, found, origin = match.length, (self._text, match), "lookup"
        if self._corpus is not None:
            static = self._corpus.automaton
            other = static.with_room(self._in_corpus, room)
            if other.length - self._options.len_bias > length:
                length, found, origin = other.length - self._options.len_bias, (static, other), "corpus"
        automaton, match = found
        tokens = automaton.following(match, min(self._options.draft_length, int(self._options.alpha * length)))
        if origin == "corpus":
            tokens = self._of_one_text(tokens)
        self._match = length
        self._drafts += 1
        self._matching += length
        return TokenTree.chain([self._text.tokens[-1], *tokens], origins=origin)

    def matched(self) -> bool:
        return self._match >= self._options.min_match

    def instead(self, tree: TokenTree) -> None:
        pass  # only emitted tokens count

    def measures(self, kept: int, stopped: bool) -> Mapping[str, float]:
        found = {"match_length": self._matching / self._drafts} if self._drafts else {}
        if self._corpus is not None:
            found[SEEN] = self._seen(kept)
        return found

    def _see(self, tokens: Sequence[int]) -> None:
        self._text.extend(tokens)
        if self._corpus is not None:
            for token in tokens:
                self._in_corpus = self._corpus.automaton.follow(self._in_corpus, token)
                self._stretches.append(self._in_corpus.length)

    def _of_one_text(self, tokens: list[int]) -> list[int]:
        """Cut a draft at the end of a text, and before tokens that the tokenizer has but the model lacks."""
        assert self._corpus is not None
        for at, token in enumerate(tokens):
            if not 0 <= token < self._vocab:
                return tokens[:at]
            if token == self._corpus.separator:
                return tokens[: at + 1]
        return tokens

    def _seen(self, kept: int) -> float:
        """Share of the answer's tokens in substrings that the corpus contains."""
        seen: set[int] = set()
        for at, length in enumerate(self._stretches[self._prompt : self._prompt + kept]):
            own = min(length, at + 1)  # count only the part in the answer, not in the prompt
            if own >= SEGMENT:
                seen.update(range(at + 1 - own, at + 1))
        return len(seen) / kept if kept else 0.0
