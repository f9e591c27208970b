"""Logits: of many rows, a chunk at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from specbench.engine.buckets import ROW_BUCKETS

_ROWS = ROW_BUCKETS[-1]  # rows whose logits exist at a time


class LogitChunks:
    """Logits of the rows of a forward, some at a time: of thousands of rows they are larger than the weights.

    A model's own code between its layers and its logits is run for each chunk, on what the layers put out the first
    time, so that a scale or a cap on logits stays.
    """

    def __init__(self, model: Any, arguments: Mapping[str, Any], kept: int) -> None:
        self._model, self._arguments = model, arguments
        self._rows = range(arguments["input_ids"].shape[1])[-kept:]

    def __iter__(self) -> Iterator[Tensor]:
        """[1, up to 512, V], in the order of the rows."""
        if len(self._rows) <= _ROWS:
            yield self._model(**self._arguments, logits_to_keep=len(self._rows)).logits
            return
        base, found = self._model.base_model, []
        hook = base.register_forward_hook(lambda *given: found.append(given[-1]))
        device = self._arguments["input_ids"].device
        try:
            for start in range(self._rows.start, self._rows.stop, _ROWS):
                rows = torch.arange(start, min(start + _ROWS, self._rows.stop), device=device)
                yield self._model(**self._arguments, logits_to_keep=rows).logits
                base.__dict__["forward"] = lambda *_, **__: found[0]
        finally:
            base.__dict__.pop("forward", None)
            hook.remove()
