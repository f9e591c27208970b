"""Draft what most often followed the end of the text, here and in earlier answers (Oliaro et al. 2024).

"SuffixDecoding", arXiv:2411.04975, as in Arctic Inference and vLLM. A suffix tree of prompt and output, and another of
the outputs of earlier requests, count the continuations of every suffix of the text. The draft is the continuation with
the most expected accepted tokens according to these counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from specbench import decoding
from specbench.decoding import Context, MethodName, StepResult, TokenTree, fallback_option, option, stop_option
from specbench.methods.suffix.drafts import NOTHING, Draft, Limits, best
from specbench.methods.suffix.tree import SuffixTree, Text


class Options(decoding.Options):
    """Options of suffix decoding; the defaults are vLLM's, without its cache of earlier answers."""

    depth: int = option(24, "D", help="tokens of the longest string that is counted", ge=2, le=256)
    draft_length: int = option(24, "k", help="tokens drafted at most", ge=1, le=511)
    factor: float = option(1.0, help="most drafted tokens per matching token", ge=0, le=64)
    offset: float = option(0.0, help="most drafted tokens in addition", ge=-64, le=511)
    min_prob: float = option(
        0.1, help="smallest share of the earlier occurrences that continue like a drafted path", ge=0, le=1
    )
    tree: bool = option(False, help="draft the most probable continuations as a tree, not the likeliest path")
    cached_requests: int = option(
        0, "requests", help="answers of earlier requests to keep; 0 starts every request cold", ge=0, le=1_000_000
    )
    fallback: MethodName | None = fallback_option("when the score is below min_score")
    stop: bool = stop_option()
    min_score: float = option(1.0, help="with fallback: lowest score for which the lookup's own draft is used", ge=0)


class Answers:
    """The outputs of a row's requests in one tree; beyond ``most``, the oldest are dropped."""

    def __init__(self, depth: int, most: int) -> None:
        self.tree = SuffixTree(depth)
        self._most = most
        self._texts: dict[int, Text] = {}  # by identity, oldest first

    def admit(self) -> Text:
        """Reserve a place for a new request."""
        text = Text()
        self._texts[id(text)] = text
        while len(self._texts) > self._most:
            self.tree.remove(self._texts.pop(next(iter(self._texts))))
        return text

    def extend(self, text: Text, tokens: Sequence[int]) -> None:
        """Add to an output, unless it was dropped."""
        if self._texts.get(id(text)) is text:
            self.tree.extend(text, tokens)


class Decoder(decoding.Decoder):
    """Keep a tree of the request's own text, and add its output to the row's tree."""

    def __init__(self, options: Options, context: Context) -> None:
        self._options = options
        self._limits = Limits(options.draft_length, options.factor, options.offset, options.min_prob, options.tree)
        self._local, self._text = SuffixTree(options.depth), Text()
        self._answers: Answers | None = context.state
        self._output: Text | None = None
        self._draft = NOTHING
        self._drafts, self._promised, self._matching = 0, 0.0, 0

    @staticmethod
    def max_rows(options: Options) -> int:
        limits = Limits(options.draft_length, options.factor, options.offset, 0.0, options.tree)
        return 1 + max(
            limits.most_after(match) if options.tree else min(limits.most_after(match), options.depth - match)
            for match in range(1, options.depth)
        )

    @staticmethod
    def state(options: Options) -> Answers | None:
        return Answers(options.depth, options.cached_requests) if options.cached_requests else None

    @property
    def score(self) -> float:
        """Expected number of accepted tokens of the last draft, according to the counts."""
        return self._draft.score

    def begin(self, prompt: Sequence[int]) -> None:
        self._local.extend(self._text, prompt)
        if self._answers is not None:
            self._output = self._answers.admit()

    def observe(self, result: StepResult) -> None:
        self._local.extend(self._text, result.emitted)
        if self._answers is not None and self._output is not None:
            self._answers.extend(self._output, result.emitted)

    def draft(self) -> TokenTree:
        context = self._text.tokens[-self._options.depth :]
        self._draft = best(self._local, context, self._limits)
        origin = "lookup"
        if self._answers is not None:
            earlier = best(self._answers.tree, context, self._limits)
            if earlier.score > self._draft.score:
                self._draft, origin = earlier, "earlier"
        self._drafts += 1
        self._promised += self._draft.score
        self._matching += self._draft.match
        return _as_tree(context[-1], self._draft, origin)

    def matched(self) -> bool:
        return self._draft.score >= self._options.min_score

    def instead(self, tree: TokenTree) -> None:
        pass  # only emitted tokens count

    def measures(self, kept: int, stopped: bool) -> Mapping[str, float]:
        if not self._drafts:
            return {}
        return {"expected": self._promised / self._drafts, "match_length": self._matching / self._drafts}


def _as_tree(root: int, draft: Draft, origin: str) -> TokenTree:
    def scores(tree: TokenTree) -> list[float | None]:
        likely = [1.0, *draft.probabilities]
        return [None, *(math.log(likely[row] / likely[tree.parents[row]]) for row in range(1, len(tree)))]

    parents = [-1, *(parent + 1 for parent in draft.parents)]
    return TokenTree([root, *draft.tokens], parents, origins=origin, scores=scores)
