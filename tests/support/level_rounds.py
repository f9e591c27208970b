"""Rounds of draft heads: what each got from the target, and the tree that it drafted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from support.decoders import served, target
from support.models import attached, autoregressive
from torch import Tensor

from specbench.decoding import StepResult, TokenTree
from specbench.planning.methods import make_method

Drafts = tuple[int, ...]  # tokens from the one below the root on
Say = Callable[[Drafts], Tensor]  # log-probabilities of the token after a path of drafts


@dataclass(frozen=True)
class Round:
    """A text with the target's features of all tokens but the last, and the tree after it."""

    features: Tensor
    text: list[int]
    tree: TokenTree

    def paths(self) -> list[Drafts]:
        """Drafts on the way to each row, the root's none."""
        found: list[Drafts] = [()]
        for row in range(1, len(self.tree)):
            found.append((*found[self.tree.parents[row]], self.tree.tokens[row]))
        return found


def rounds(
    name: str, model: Any, prompts: Sequence[list[int]], tokens: int, capture: Any = None, **options: Any
) -> list[Round]:
    """Those of prompts that are decoded together; what is emitted must be AR's.

    ``capture``: takes the place of the engine's capture of rounds.
    """
    seen: list[Round] = []
    with attached(model, slots=len(prompts), capacity=80, max_rows=64) as engine:
        if capture is not None:
            engine.capture = capture  # type: ignore[method-assign]
        truth = [autoregressive(engine, ids, tokens) for ids in prompts]
        method = make_method(name, name, options).ready(target(engine))

        class Watched(method.decoder):  # type: ignore[name-defined]
            def begin(self, prompt: Sequence[int]) -> None:
                self._text, self._features = [*prompt], list[Tensor]()
                super().begin(prompt)

            def observe(self, result: StepResult) -> None:
                assert result.hidden is not None
                self._text += result.emitted
                self._features.append(result.hidden.clone())
                super().observe(result)

            def draft(self) -> TokenTree:
                tree = super().draft()
                seen.append(Round(torch.cat(self._features), [*self._text], tree))
                return tree

        records = served(engine, replace(method, decoder=Watched), prompts, tokens, len(prompts))
    assert [record.output_ids for record in records] == truth
    assert sum(record.target_forwards for record in records) == len(seen)
    return seen


def said(dense: Any) -> Say:
    """What an oracle says after a path, of one that says it after each beginning of the path; each is asked once."""
    known: dict[Drafts, Tensor] = {}

    def say(path: Drafts) -> Tensor:
        if path not in known:
            known.update({path[:at]: row for at, row in enumerate(dense(path))})
        return known[path]

    return say


def difference(each: Round, say: Say) -> float:
    """How far the scores of a tree's rows are from the oracle's, at most; of large ones, in float32, the share."""
    scores, worst = each.tree.row_scores(), 0.0
    assert scores is not None
    assert scores[0] is None
    paths = each.paths()
    assert len(set(paths)) == len(paths)
    for path, score in sorted(zip(paths[1:], scores[1:], strict=True), key=lambda row: -len(row[0])):
        assert score is not None
        worst = max(worst, abs(score - float(say(path[:-1])[path[-1]])) / max(1.0, abs(score)))
    return worst
