"""Data class for a parallel head's scores: the best tokens of each depth with their log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from operator import ge

from specbench.decoding.tree import TokenTree

_ROUNDING = 1e-3  # largest log-probability that rounding can explain; raw logits are usually larger


@dataclass(frozen=True, slots=True)
class Marginals:
    """The best K tokens of each of the next D positions, scored independently of one another.

    Plain lists are fastest (``tensor.tolist()``): builders read single entries.

    Attributes:
        root: the last emitted token.
        tokens: candidates of each depth, best first, shape [D][K]; those of depth 1 follow the root. K may differ
            between depths.
        logp: natural log-probabilities of the candidates, shape [D][K], normalised over the whole vocabulary (not over
            the K) at temperature 1: sampling does not rescale them (JetSpec). -inf marks an impossible token.

    Raises:
        ValueError: shapes differ, a depth has no possible candidate or a duplicate, or its log-probabilities are not
            normalised, not descending, or NaN.
    """

    root: int
    tokens: Sequence[Sequence[int]]
    logp: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.logp):
            raise ValueError(f"{len(self.tokens)} depths of tokens, but {len(self.logp)} of log-probabilities")
        for depth, (tokens, logp) in enumerate(zip(self.tokens, self.logp, strict=True), 1):
            if len(tokens) == 0 or len(tokens) != len(logp):
                raise ValueError(f"depth {depth} has {len(tokens)} tokens and {len(logp)} log-probabilities")
            if not -math.inf < logp[0] <= _ROUNDING:
                raise ValueError(f"the best log-probability of depth {depth} is {logp[0]}; apply log_softmax first")
            if not all(map(ge, logp, islice(logp, 1, None))):
                raise ValueError(f"the log-probabilities of depth {depth} are not in descending order")
            if len(set(tokens)) != len(tokens):
                raise ValueError(f"a token occurs twice at depth {depth}")

    def scores(self, tree: TokenTree) -> list[float | None]:
        """Return the log-probability of each row's token at its depth, [rows], for :attr:`TokenTree.scores`.

        None for the root, and for tokens that are impossible or not among the candidates of their depth.
        """
        likely = [dict(zip(tokens, logp, strict=True)) for tokens, logp in zip(self.tokens, self.logp, strict=True)]
        depths = [0]
        found: list[float | None] = [None]
        for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
            depth = depths[parent]
            score = likely[depth].get(token, -math.inf) if depth < len(likely) else -math.inf
            depths.append(depth + 1)
            found.append(score if score > -math.inf else None)
        return found


def check_budget(budget: int) -> None:
    """Refuse a budget below 1, which leaves no row for the root."""
    if budget < 1:
        raise ValueError(f"a budget of {budget} rows leaves none for the root; give 1 or more")
