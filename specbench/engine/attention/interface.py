"""Attention function that is registered with transformers and that every model's layers call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface

from specbench.common import UsageError
from specbench.engine.layout import Layout

NAME = "specbench"

# Arguments that have no effect here: the engine sets positions, dropout is off, the mask comes from the step, and
# additional outputs of a forward (router logits, hidden states) do not concern attention.
_HARMLESS = frozenset(
    {"dropout", "is_causal", "position_ids", "use_cache", "cache_position", "output_attentions"}
    | {"output_router_logits", "output_hidden_states"}
)


class UnsupportedAttention(UsageError):
    """The model's attention has a feature that the engine does not support."""


@dataclass(frozen=True)
class Visibility:
    """Which cells each row of a step may read; every backend builds its own mask from this.

    N rows, S slots, L cells.

    Attributes:
        lengths: integer [S], cached tokens of each slot; the slot's rows are in the cells after them.
        depth: integer [N], number of ancestors of each row; a row's position is its slot's length + depth.
        rows: which rows each row may attend to, in the form of :class:`specbench.engine.ops.Ancestry`.
    """

    layout: Layout
    lengths: Tensor
    depth: Tensor
    rows: Tensor


class Backend(Protocol):
    """Attention of one forward, made from the forward's :class:`Visibility`."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
        """Attention of [1, heads, N, size] queries to their slots' [S, KV heads, L, size] keys.

        Args:
            scale: factor on the scores; None is ``size ** -0.5``.
            window: a row sees only keys less than this many positions before it; None is no limit.

        Returns:
            [1, N, heads, value size]; arbitrary finite values for padding.
        """
        ...


@dataclass
class Calls:
    """Attention parameters of each layer, recorded during one forward, for load-time checks and for step costs.

    By layer: sliding window (None: no limit), number of query heads, factor on the scores (None: ``size ** -0.5``).
    """

    windows: dict[int, int | None] = field(default_factory=dict)
    heads: dict[int, int] = field(default_factory=dict)
    scales: dict[int, float | None] = field(default_factory=dict)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    step: Backend | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    calls: Calls | None = None,
    **features: Any,
) -> tuple[Tensor, None]:
    """Attend with the signature of transformers; ``step`` and ``calls`` come through the model's keyword arguments."""
    for name, value_of in features.items():
        if name not in _HARMLESS and value_of is not None:
            raise UnsupportedAttention(f"this model's attention uses '{name}', which the engine does not support yet")
    if step is None:
        raise UnsupportedAttention(
            "this model does not pass its keyword arguments on to its attention layers, which the engine needs"
        )
    if attention_mask is not None:
        raise UnsupportedAttention("this model makes its own attention mask, which the engine does not support yet")
    if calls is not None:
        layer = getattr(module, "layer_idx", len(calls.windows))
        calls.windows[layer], calls.heads[layer], calls.scales[layer] = sliding_window, query.shape[1], scaling
    return step(query, key, value, scaling, sliding_window), None


# Deliberately not in transformers' mask registry: models then make no mask and pass None.
AttentionInterface.register(NAME, attend)
