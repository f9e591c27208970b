"""The seam to transformers: one attention function, registered once, that every model's layers call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface

from specbench.common import UsageError
from specbench.engine.layout import Layout

NAME = "specbench"

# Arguments that change nothing here: positions are ours, dropout is off, the mask is the step's, and what else a
# forward returns (router logits, hidden states) is not attention's business.
_HARMLESS = frozenset(
    {"dropout", "is_causal", "position_ids", "use_cache", "cache_position", "output_attentions"}
    | {"output_router_logits", "output_hidden_states"}
)


class UnsupportedAttention(UsageError):
    """The model's attention has a feature that the engine does not express."""


@dataclass(frozen=True)
class Visibility:
    """Which cells each row of a step may read, in the terms every backend builds its own mask from.

    N rows, S slots, L cells.

    Attributes:
        lengths: integer [S], cached tokens of each slot; its rows sit in the cells from there on.
        depth: integer [N], ancestors of each row; its position is its slot's length + depth.
        rows: which rows each row may attend to, as :class:`specbench.engine.ops.Ancestry` has it.
    """

    layout: Layout
    lengths: Tensor
    depth: Tensor
    rows: Tensor


class Backend(Protocol):
    """One step's attention. Made anew for each forward from its :class:`Visibility`."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
        """Attention of [1, heads, N, size] queries to their slots' [S, KV heads, L, size] keys.

        Args:
            scale: factor on the scores; None is ``size ** -0.5``.
            window: a row sees only keys less than this many positions before it; None is no limit.

        Returns:
            [1, N, heads, value size]; zeros, or what else is finite, for padding.
        """
        ...


@dataclass
class Calls:
    """What the attention layers asked for during one forward; read by the load-time checks and the cost of a step.

    By layer: the sliding window (None: no limit), the query heads, the factor on the scores (None: the usual one).
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
    """transformers' attention signature; ``step`` and ``calls`` travel through the model's keyword arguments."""
    for name, value_of in features.items():
        if name not in _HARMLESS and value_of is not None:
            raise UnsupportedAttention(f"this model's attention uses '{name}', which the engine does not express yet")
    if step is None:
        raise UnsupportedAttention(
            "this model does not hand its keyword arguments on to its attention layers, which the engine needs"
        )
    if attention_mask is not None:
        raise UnsupportedAttention(
            "this model brings an attention mask of its own, which the engine does not express yet"
        )
    if calls is not None:
        layer = getattr(module, "layer_idx", len(calls.windows))
        calls.windows[layer], calls.heads[layer], calls.scales[layer] = sliding_window, query.shape[1], scaling
    return step(query, key, value, scaling, sliding_window), None


# Not in transformers' mask registry on purpose: models then make no mask at all and pass None.
AttentionInterface.register(NAME, attend)
