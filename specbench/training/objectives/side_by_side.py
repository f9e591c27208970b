"""Plain texts as a batch, for recipes that see each from its beginning to its end."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.training.recipe import Text


def teaching(texts: Sequence[Text], most: int) -> list[Text]:
    """Texts cut to ``most`` tokens, prompt included, without those whose answer has no second token to foresee."""
    cut = [Text(text.id, text.prompt, text.answer[: max(0, most - len(text.prompt))]) for text in texts]
    return [text for text in cut if len(text.answer) >= 2]


def side_by_side(texts: Sequence[Text]) -> dict[str, Tensor]:
    """Texts filled up at their ends, where nothing looks.

    Returns:
        ``ids`` int64 [B, S]; ``starts`` and ``ends`` int64 [B]: first position of each answer, tokens of each text.
    """
    ids = [torch.tensor([*text.prompt, *text.answer]) for text in texts]
    return {
        "ids": torch.nn.utils.rnn.pad_sequence(ids, batch_first=True),
        "starts": torch.tensor([len(text.prompt) for text in texts]),
        "ends": torch.tensor([len(one) for one in ids]),
    }
