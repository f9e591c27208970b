"""The frozen target: features that the head reads, and the states that its own next tokens come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.engine import decoder_layers, tapped


class Teacher:
    """One forward of the target over whole texts.

    Args:
        model: a transformers causal LM; not changed.
        taps: layers, from 0, whose outputs the head reads.
    """

    def __init__(self, model: Any, taps: Sequence[int]) -> None:
        self._model, self._taps = model, tuple(taps)
        self._layers = decoder_layers(model)

    @torch.no_grad()
    def __call__(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Features and last states of texts, filled up at their ends.

        Args:
            ids: int64 [B, S].

        Returns:
            ([B, S, T × H] outputs of the tapped layers, [B, S, H] what the LM head takes). A row depends on the tokens
            before it alone, so what fills a text up changes nothing.
        """
        with tapped(self._layers, self._taps) as outputs:
            states = self._model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        return torch.cat(outputs, dim=-1), states


class Remembered:
    """A teacher's outputs of whole texts, kept in memory from their first visit on: later ones need no forward.

    What a forward says of a text depends, by rounding, on what shares it, so a training that is gone on with may differ
    in that from one that was not interrupted.
    """

    def __init__(self, teacher: Teacher) -> None:
        self._teacher = teacher
        self._kept: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def __call__(self, ids: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        """Features and last states of texts, as :class:`Teacher` has them; zeros behind their ends.

        Args:
            ids: int64 [B, S] texts, filled up at their ends.
            ends: int64 [B] tokens of each.
        """
        texts = [tuple(row[:end]) for row, end in zip(ids.tolist(), ends.tolist(), strict=True)]
        if any(text not in self._kept for text in texts):
            found = self._teacher(ids)
            for row, text in enumerate(texts):
                features, states = (part[row, : len(text)].clone().cpu() for part in found)
                self._kept[text] = features, states
        kept = [self._kept[text] for text in texts]
        features, states = (
            torch.nn.utils.rnn.pad_sequence([one[part] for one in kept], batch_first=True).to(ids.device)
            for part in (0, 1)
        )
        missing = ids.shape[1] - features.shape[1]
        if missing:
            features, states = (torch.nn.functional.pad(part, (0, 0, 0, missing)) for part in (features, states))
        return features, states
