"""SAM-Decoding: the longest end of the text that occurred before, found by a suffix automaton (Hu et al. 2024).

arXiv:2411.10666. What followed its first occurrence is the draft: of the text itself, or of a corpus where that matches
longer. The longer the match, the more is drafted.
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
)
from specbench.methods.sam import corpus
from specbench.methods.sam.automaton import NO_MATCH, Automaton
from specbench.methods.sam.corpus import Corpus


class Options(decoding.Options):
    """Options of SAM-Decoding; the defaults are those of the released code."""

    draft_length: int = option(40, "k", help="tokens drafted at most", ge=1, le=511)
    alpha: float = option(4.0, help="tokens drafted at most for each one that matches", gt=0, le=64)
    full_only: bool = option(
        True, help="leave out matches that fewer than draft_length tokens follow where they occurred first"
    )
    corpus: str | None = option(None, help="file of texts to look up too: .txt, or .jsonl with a text in each line")
    len_bias: int = option(
        5, help="tokens that a match in the corpus is to be longer than the text's own", ge=0, le=512
    )
    fallback: MethodName | None = fallback_option("where fewer than min_match tokens match")
    min_match: int = option(5, help="with fallback: least tokens that match for it not to be asked", ge=0, le=512)


class Decoder(decoding.Decoder):
    """Keeps an automaton of prompt and output, and follows its text through the corpus."""

    def __init__(self, options: Options, context: Context) -> None:
        self._options = options
        self._vocab = context.vocab_size
        self._text = Automaton()
        self._corpus: Corpus | None = context.shared
        self._in_corpus = NO_MATCH
        self._match = 0  # tokens that the last draft went by
        self._drafts = self._matching = 0
        self._prompt = 0
        self._stretches: list[int] = []  # of the text up to each of its tokens: the longest end that the corpus has

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
        tokens = automaton.behind(match, min(self._options.draft_length, int(self._options.alpha * length)))
        if origin == "corpus":
            tokens = self._of_one_text(tokens)
        self._match = length
        self._drafts += 1
        self._matching += length
        return TokenTree.chain([self._text.tokens[-1], *tokens], origins=origin)

    def matched(self) -> bool:
        return self._match >= self._options.min_match

    def instead(self, tree: TokenTree) -> None:
        pass  # only what is emitted counts

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
        """What is the target's to say: not beyond the end of a text, and no token that only the tokenizer has."""
        assert self._corpus is not None
        for at, token in enumerate(tokens):
            if not 0 <= token < self._vocab:
                return tokens[:at]
            if token == self._corpus.separator:
                return tokens[: at + 1]
        return tokens

    def _seen(self, kept: int) -> float:
        """Share of the answer's tokens in strings of it that the corpus holds."""
        seen: set[int] = set()
        for at, length in enumerate(self._stretches[self._prompt : self._prompt + kept]):
            own = min(length, at + 1)  # what it shares with the prompt says nothing of the answer
            if own >= SEGMENT:
                seen.update(range(at + 1 - own, at + 1))
        return len(seen) / kept if kept else 0.0
