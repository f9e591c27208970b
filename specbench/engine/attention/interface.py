"""Attention function that is registered with transformers and that every model's layers call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
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
        starts: integer [S], cell of each slot's first row; None: the one after ``lengths``. In a pass over masked
            positions all rows may see further cells, their own among them: ``lengths`` are then these cells.
    """

    layout: Layout
    lengths: Tensor
    depth: Tensor
    rows: Tensor
    starts: Tensor | None = None


class Sight(NamedTuple):
    """How far back rows see: the same for all layers of one kind.

    Attributes:
        window: a row sees only keys less than this many positions before it; None is no limit.
        chunk: a row sees only keys whose position divided by this number, rounded down, equals its own; None is no
            limit (Llama 4).
    """

    window: int | None = None
    chunk: int | None = None

    @property
    def limited(self) -> bool:
        return self.window is not None or self.chunk is not None

    @property
    def most(self) -> int | None:
        """The most keys that a row may see; None is no limit."""
        return min((limit for limit in self if limit is not None), default=None)

    def reaches(self, cells: int) -> bool:
        """Whether rows of a text of ``cells`` tokens see all of it."""
        return self.most is None or cells <= self.most

    def earliest(self, position: Tensor) -> Tensor:
        """The first position that rows at ``position`` see."""
        first = torch.zeros_like(position)
        if self.window is not None:
            first = (position - self.window + 1).clamp(min=0)
        return first if self.chunk is None else first.maximum(position // self.chunk * self.chunk)


EVERYTHING = Sight()


@dataclass(frozen=True, eq=False)
class LayerAttention:
    """Parameters of a layer's attention.

    Attributes:
        scale: factor on the scores; None is ``size ** -0.5``.
        softcap: scores s become softcap · tanh(s / softcap); None leaves them (Gemma 2).
        sinks: [heads] scores of one more key per head, which has no value (gpt-oss); None is no such key.
    """

    scale: float | None = None
    sight: Sight = EVERYTHING
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether it is a softmax over visible keys that a sliding window may limit, as every backend computes it."""
        return self.softcap is None and self.sinks is None and self.sight.chunk is None


class Backend(Protocol):
    """Attention of one forward, made from the forward's :class:`Visibility`."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention) -> Tensor:
        """Attention of [1, heads, N, size] queries to their slots' [S, KV heads, L, size] keys.

        Returns:
            [1, N, heads, value size]; arbitrary finite values for padding.
        """
        ...


@dataclass
class Calls:
    """Attention of each layer, recorded during one forward, for load-time checks and for step costs.

    By layer: its parameters, and its number of query heads.
    """

    layers: dict[int, LayerAttention] = field(default_factory=dict)
    heads: dict[int, int] = field(default_factory=dict)

    @property
    def windows(self) -> dict[int, int | None]:
        """The most keys that a row of each layer may see; None is no limit."""
        return {layer: how.sight.most for layer, how in self.layers.items()}


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
    softcap: float | None = None,
    s_aux: Tensor | None = None,
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
    how = LayerAttention(scaling, Sight(sliding_window, chunk_of(module)), softcap, s_aux)
    if calls is not None:
        layer = getattr(module, "layer_idx", len(calls.layers))
        calls.layers[layer], calls.heads[layer] = how, query.shape[1]
    return step(query, key, value, how), None


def chunk_of(module: nn.Module) -> int | None:
    """Tokens of a chunk if the layer's attention is chunked, which models show only in their own masks."""
    if hasattr(module, "specbench_chunk"):
        return module.specbench_chunk  # type: ignore[return-value]
    config, layer = getattr(module, "config", None), getattr(module, "layer_idx", None)
    kinds = getattr(config, "layer_types", None) or ()
    chunked = layer is not None and "chunked_attention" in kinds and kinds[layer] == "chunked_attention"
    return int(config.attention_chunk_size) if chunked else None  # type: ignore[union-attr]


# Deliberately not in transformers' mask registry: models then make no mask and pass None.
AttentionInterface.register(NAME, attend)
