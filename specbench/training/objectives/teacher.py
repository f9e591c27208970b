"""Compute what a draft head learns from: the target's features, and the last states that its LM head takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.engine import base_model, tap_points, tapped


class Teacher:
    """Target forwards over whole texts.

    Args:
        model: a transformers causal LM; not changed.
        taps: what the draft head reads, as :meth:`specbench.decoding.Decoder.taps` counts.
    """

    def __init__(self, model: Any, taps: Sequence[int]) -> None:
        self._model, self._taps = model, tuple(taps)
        self._points = tap_points(model)

    @torch.no_grad()
    def __call__(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and last states of texts, padded at their ends.

        Args:
            ids: int64 [B, S].

        Returns:
            ([B, S, T × H] outputs of the tapped layers, [B, S, H] input of the LM head). Attention is causal, so
            padding has no effect.
        """
        with tapped(self._points, self._taps) as outputs:
            states = base_model(self._model)(input_ids=ids, use_cache=False).last_hidden_state
        return torch.cat(outputs, dim=-1), states


class Remembered:
    """A teacher's outputs of whole texts, kept in memory from the first visit on: later visits need no forward.

    Outputs depend, within rounding, on the other texts in the same forward, so a resumed training may differ slightly
    from an uninterrupted one.
    """

    def __init__(self, teacher: Teacher) -> None:
        self._teacher = teacher
        self._kept: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def __call__(self, ids: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and last states of texts, as :class:`Teacher` does; zeros after the ends.

        Args:
            ids: int64 [B, S] texts, padded at their ends.
            ends: int64 [B] tokens of each text.
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
