"""Draft vocabulary: the tokens that a head with fewer rows than the target can draft, chosen on training text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from specbench.training.recipe import Text


def most_frequent(texts: Sequence[Text], size: int, vocabulary: int) -> Tensor:
    """The tokens that answers use most, then those of prompts, then the lowest: ascending ids, int64 [size]."""
    used: Counter[int] = Counter()
    asked: Counter[int] = Counter()
    for text in texts:
        used.update(text.answer)
        asked.update(text.prompt)
    order = sorted(range(vocabulary), key=lambda token: (-used[token], -asked[token], token))
    return torch.tensor(sorted(order[:size]))


def coverage(ids: Tensor, texts: Iterable[Text]) -> float:
    """Share of the tokens of answers that are among ``ids``: no token outside can ever be drafted; NaN of no text."""
    known = set(ids.tolist())
    tokens = [token for text in texts for token in text.answer]
    return sum(token in known for token in tokens) / len(tokens) if tokens else float("nan")


def covered(ids: Tensor | None, texts: Sequence[Text]) -> dict[str, float]:
    """:func:`coverage` as a card has it; nothing of a head that drafts every token, or where no text was held out."""
    return {} if ids is None or not texts else {"draft_vocab_coverage": round(coverage(ids, texts), 4)}
