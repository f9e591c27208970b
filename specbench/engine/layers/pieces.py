"""Operations that the layers of a draft head consist of, computed with torch.

A head's forward is written once, over a :class:`Pieces` object. In training it is the one from this module; when a head
drafts, it is the equivalent one from :mod:`specbench.engine.layers.kernel_pieces`, where our kernels or our C++ run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor, nn
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, rotate_half

#: (layer, its attention module, q [S, heads, n, D], k and v [S, KV heads, n, D] of the rows) -> [S, n, heads, D]. It
#: adds the keys and values of the other cells that the rows see, and the mask.
Attend = Callable[[int, Any, Tensor, Tensor, Tensor], Tensor]
#: (layer, k and v [S, KV heads, n, D]) of rows that only need to be stored.
Store = Callable[[int, Tensor, Tensor], Any]
#: cos and sin, [S, n, D] each.
Rotary = tuple[Tensor, Tensor]


class Pieces(Protocol):
    """Operations of a layer. S texts with n rows each, H is the hidden size, D the head size."""

    def norm(self, norm: nn.Module, stream: Tensor, branch: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return (norm of the sum, the sum) of a residual stream [S, n, H] and a branch that is added to it."""
        ...

    def attention(self, layer: int, module: Any, inner: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        """Run rows [S, n, width] through a layer's attention and its output product: [S, n, H].

        ``module`` has ``q_proj``, ``k_proj``, ``v_proj``, ``o_proj``, ``head_dim``, and may have ``q_norm`` and
        ``k_norm``, which are norms of each head.
        """
        ...

    def keep(self, layer: int, module: Any, inner: Tensor, rotary: Rotary, store: Store) -> None:
        """Store the keys and values of rows [S, n, width], which need no other result of the layer."""
        ...

    def mlp(self, module: nn.Module, inner: Tensor) -> Tensor:
        """Run rows [S, n, H] through a layer's MLP."""
        ...


class PlainPieces:
    """Reference implementation in torch."""

    def norm(self, norm: nn.Module, stream: Tensor, branch: Tensor | None = None) -> tuple[Tensor, Tensor]:
        total = stream if branch is None else stream + branch
        return norm(total), total

    def attention(self, layer: int, module: Any, inner: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        query, key = _heads(module, "q", inner), _heads(module, "k", inner)
        query, key = apply_rotary_pos_emb(query.transpose(1, 2), key.transpose(1, 2), *rotary)
        mixed = attend(layer, module, query, key, _heads(module, "v", inner).transpose(1, 2))
        output: Tensor = module.o_proj(mixed.flatten(2))
        return output

    def keep(self, layer: int, module: Any, inner: Tensor, rotary: Rotary, store: Store) -> None:
        key, cos, sin = _heads(module, "k", inner).transpose(1, 2), *(each[:, None] for each in rotary)
        store(layer, key * cos + rotate_half(key) * sin, _heads(module, "v", inner).transpose(1, 2))

    def mlp(self, module: nn.Module, inner: Tensor) -> Tensor:
        output: Tensor = module(inner)
        return output


PLAIN = PlainPieces()


def _heads(module: Any, name: str, inner: Tensor) -> Tensor:
    """Queries, keys or values [S, n, heads, D], normalized per head if the module has such a norm."""
    found: Tensor = getattr(module, f"{name}_proj")(inner).unflatten(-1, (-1, module.head_dim))
    norm = getattr(module, f"{name}_norm", None)
    return found if norm is None else norm(found)
