"""Choose the tokens that a head with a smaller vocabulary than the target can draft, from training texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from specbench.training.recipe import Text


def most_frequent(texts: Sequence[Text], size: int, vocabulary: int) -> Tensor:
    """Return the tokens most frequent in answers, then in prompts, then the lowest ids: ascending, int64 [size]."""
    used: Counter[int] = Counter()
    asked: Counter[int] = Counter()
    for text in texts:
        used.update(text.answer)
        asked.update(text.prompt)
    order = sorted(range(vocabulary), key=lambda token: (-used[token], -asked[token], token))
    return torch.tensor(sorted(order[:size]))


def coverage(ids: Tensor, texts: Iterable[Text]) -> float:
    """Return the share of answer tokens that are among ``ids``: others are never drafted. NaN without tokens."""
    known = set(ids.tolist())
    tokens = [token for text in texts for token in text.answer]
    return sum(token in known for token in tokens) / len(tokens) if tokens else float("nan")


def covered(ids: Tensor | None, texts: Sequence[Text]) -> dict[str, float]:
    """Return :func:`coverage` as an entry of a model card; empty without a draft vocabulary or held-out texts."""
    return {} if ids is None or not texts else {"draft_vocab_coverage": round(coverage(ids, texts), 4)}
