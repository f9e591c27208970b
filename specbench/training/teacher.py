"""The frozen target: features that the head reads, and the states that its own next tokens come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.engine.step import decoder_layers, tapped


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
