"""Run the model in training: hidden states of all rows, and scores of the rows that a loss needs.

The LM head is the largest matrix product of a small model, so it runs only on the rows that are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from specbench.common import UsageError
from specbench.training.objectives.attention_mask import AttentionMask
from specbench.training.objectives.packing import Packed

_HELD = 1 << 27  # scores; in float32, with gradients and the log-probabilities of student and teacher: 2 GiB


class Student:
    """A transformers causal LM, with or without a PEFT adapter. Not a module: the lesson holds the weights.

    Args:
        model: loaded with an attention that takes a mask: ``sdpa``, ``eager`` or ``flex_attention``.

    Raises:
        UsageError: the model has layers of a kind, or changes scores after its LM head, which is not supported here.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        if other := self._kinds - {"full_attention", "sliding_attention"}:
            raise UsageError(
                f"cannot train {type(model).__name__}: it has layers of kind {min(other)}, for which packed texts have "
                "no mask; choose another model"
            )
        self._check()

    def states(self, packed: Packed, mask: Callable[..., AttentionMask] = AttentionMask) -> Tensor:
        """Return the last states [B, S, H] of packed texts.

        Args:
            mask: called as ``mask(packed, reach=…)``, see :class:`AttentionMask`.

        Raises:
            UsageError: the model's attention does not take a mask.
        """
        found: Tensor = self._decoder(
            input_ids=packed.ids,
            position_ids=packed.positions,
            attention_mask=self._masks(packed, mask),
            use_cache=False,
        ).last_hidden_state
        return found

    def text_states(self, ids: Tensor) -> Tensor:
        """Return the last states [B, S, H] of plain texts, padded at their ends; attention is causal, so padding has no
        effect."""
        found: Tensor = self._decoder(input_ids=ids, use_cache=False).last_hidden_state
        return found

    def scores(self, states: Tensor) -> Tensor:
        """Return the LM head's scores [M, V] of states [M, H]."""
        found: Tensor = self._model.get_output_embeddings()(states)
        return found

    @property
    def rows_at_once(self) -> int:
        """Rows to score at once, see :func:`specbench.training.objectives.losses.evaluate_losses`."""
        return max(2, _HELD // int(self._model.config.get_text_config().vocab_size))

    @property
    def _decoder(self) -> Any:
        # Looked up each time: adding or removing an adapter replaces this module.
        return self._model.get_decoder()

    @property
    def _reach(self) -> int | None:
        return getattr(self._model.config.get_text_config(), "sliding_window", None)

    @property
    def _kinds(self) -> set[str]:
        kinds = getattr(self._model.config.get_text_config(), "layer_types", None)
        return set(kinds or ["sliding_attention" if self._reach else "full_attention"])

    def _masks(self, packed: Packed, mask: Callable[..., AttentionMask]) -> Any:
        """Return the model's ``attention_mask``; a mask per kind of layer where the model has several kinds."""
        masks = {
            kind: self._mask(mask(packed, reach=self._reach if kind == "sliding_attention" else None))
            for kind in self._kinds
        }
        return masks if len(masks) > 1 else masks.popitem()[1]

    def _mask(self, sight: AttentionMask) -> Any:
        attention = self._model.config._attn_implementation
        if attention == "flex_attention":
            return sight.blocks()
        if attention == "sdpa":
            return sight.dense()
        if attention == "eager":  # eager attention adds its mask to the scores
            dtype = self._model.dtype
            seen = sight.dense()
            return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)
        raise UsageError(
            f"cannot train with attention={attention}: it does not take a mask of blocks; set attention=sdpa or "
            "flex_attention"
        )

    @torch.no_grad()
    def _check(self) -> None:
        ids = torch.arange(8, device=self._model.device)[None]  # several, because one of them may be the pad token
        logits = self._model(input_ids=ids, use_cache=False).logits
        if not torch.allclose(self.scores(self.text_states(ids)), logits, rtol=1e-3, atol=1e-3):
            raise UsageError(
                f"cannot train {type(self._model).__name__}: it changes its scores after the LM head, and these losses "
                "do not; choose another model"
            )
