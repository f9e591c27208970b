"""Student: the model in training, scores of the rows of packed texts that a loss needs, and a batch to a loss.

The LM head is the largest single product of a small model, so it runs on those rows alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from specbench.common import UsageError
from specbench.training.distances import Measure, forward_kl
from specbench.training.losses import Pairs, autoregressive, evaluate, mean
from specbench.training.packing import Packed
from specbench.training.sight import Sight


class ConsistencyLesson(nn.Module):
    """loss = consistency + λ · autoregressive, of one forward over both streams.

    Args:
        model: a transformers causal LM, bare or with an adapter, of an attention that takes a mask of blocks; what of
            it is trained is the caller's business.
        objective: the rows that learn from others.
        window: of the mask, see :class:`specbench.training.sight.Sight`.
        ar_weight: λ; 0 leaves that loss out.
        include_prompt: the prompt's tokens count in it.
        smoothing: of its labels.
        distance: that noisy rows are from their teachers.

    Raises:
        UsageError: see :class:`Student`.
    """

    def __init__(
        self,
        model: Any,
        objective: Callable[[Packed], Pairs],
        *,
        window: int | None,
        ar_weight: float,
        include_prompt: bool = False,
        smoothing: float = 0.0,
        distance: Measure = forward_kl,
    ) -> None:
        super().__init__()
        self.model = model
        self._student = Student(model)
        self._objective, self._window = objective, window
        self._ar_weight, self._include_prompt, self._smoothing = ar_weight, include_prompt, smoothing
        self._distance = distance

    def forward(self, **batch: Tensor) -> dict[str, Tensor]:
        """One step's loss.

        Args:
            batch: :meth:`Packed.tensors`.

        Returns:
            ``loss``; ``consistency`` and ``autoregressive``, its two parts before λ; ``agrees``, the share of noisy
            rows whose best token is their teacher's; ``accuracy``, of the clean text's tokens; all scalars.
        """
        packed = Packed(**batch)
        pairs, targets = self._objective(packed), autoregressive(packed, self._include_prompt)
        states = self._student.states(packed, self._window).flatten(0, 1)
        scores, at_once = self._student.scores, self._student.rows_at_once
        found = evaluate(scores, states, pairs, targets, self._smoothing, at_once, self._distance)
        consistency = (found.divergence * pairs.shares).sum()
        surprise = (found.surprise * targets.shares).sum()
        return {
            "loss": consistency + self._ar_weight * surprise if self._ar_weight else consistency,
            "consistency": consistency.detach(),
            "autoregressive": surprise.detach(),
            "agrees": mean(found.agrees),
            "accuracy": mean(found.right),
        }


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

        Args:
            packed: the batch.
            window: of the mask, see :class:`Sight`.

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
        """Rows whose scores may be held together, see :func:`specbench.training.losses.evaluate`."""
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
