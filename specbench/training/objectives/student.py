"""The model in training, and scores of the rows of texts that a loss needs.

The LM head is the largest single product of a small model, so it runs on those rows alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specbench.common import UsageError
from specbench.training.objectives.packing import Packed
from specbench.training.objectives.sight import Sight

_HELD = 1 << 27  # scores; in float32, with their gradient and the logarithms of both sides, 2 GiB


class Student:
    """A transformers causal LM, bare or with an adapter of PEFT's. No module: whoever trains owns the weights.

    Args:
        model: of an attention that takes a mask: ``sdpa``, ``eager`` or ``flex_attention``.

    Raises:
        UsageError: the model does something to scores behind its LM head, which would be left out here.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._check()

    def states(self, packed: Packed, window: int | None = None) -> Tensor:
        """Last states [B, S, H] of packed texts.

        Raises:
            UsageError: the model's attention takes no mask.
        """
        found: Tensor = self._decoder(
            input_ids=packed.ids,
            position_ids=packed.positions,
            attention_mask=self._masks(packed, window),
            use_cache=False,
        ).last_hidden_state
        return found

    def text_states(self, ids: Tensor) -> Tensor:
        """Last states [B, S, H] of ordinary texts, filled up at their ends: causal, so that what fills them up changes
        nothing."""
        found: Tensor = self._decoder(input_ids=ids, use_cache=False).last_hidden_state
        return found

    def scores(self, states: Tensor) -> Tensor:
        """The LM head's scores [M, V] of states [M, H]."""
        found: Tensor = self._model.get_output_embeddings()(states)
        return found

    @property
    def rows_at_once(self) -> int:
        """Rows whose scores may be held together, see :func:`specbench.training.objectives.losses.evaluate_losses`."""
        return max(2, _HELD // int(self._model.config.get_text_config().vocab_size))

    @property
    def _decoder(self) -> Any:
        # Looked up each time: wrapping in an adapter, or taking one off, puts another module there.
        return self._model.get_decoder()

    def _masks(self, packed: Packed, window: int | None) -> Any:
        """What the model takes for ``attention_mask``; by kind of layer where it has several."""
        config = self._model.config.get_text_config()
        reach = getattr(config, "sliding_window", None)
        kinds = set(getattr(config, "layer_types", None) or ["sliding_attention" if reach else "full_attention"])
        masks = {
            kind: self._mask(Sight(packed, window, reach if kind == "sliding_attention" else None)) for kind in kinds
        }
        return masks if len(masks) > 1 else masks.popitem()[1]

    def _mask(self, sight: Sight) -> Any:
        attention = self._model.config._attn_implementation
        if attention == "flex_attention":
            return sight.blocks()
        if attention == "sdpa":
            return sight.dense()
        if attention == "eager":  # which adds its mask
            dtype = self._model.dtype
            seen = sight.dense()
            return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)
        raise UsageError(f"{attention} takes no mask of blocks; load the model with sdpa or flex_attention")

    @torch.no_grad()
    def _check(self) -> None:
        ids = torch.arange(8, device=self._model.device)[None]  # one of them may be a pad, which says nothing
        behind = self._model(input_ids=ids, use_cache=False).logits
        if not torch.allclose(self.scores(self.text_states(ids)), behind, rtol=1e-3, atol=1e-3):
            raise UsageError(
                f"{type(self._model).__name__} changes its scores behind the LM head, which these losses leave out; "
                "choose another model"
            )
