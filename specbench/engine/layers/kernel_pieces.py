"""Run a draft head's layers with the code that runs a target's layers: kernels on a GPU, our C++ on a CPU.

Implements the protocol in ``pieces``. Before the first round, each piece of each layer is compared
with torch's once, over random rows; a piece that differs by more than rounding is computed by torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from specbench.engine.attention.interface import Calls, LayerAttention, Sight
from specbench.engine.cache import StaticCache
from specbench.engine.fast_paths import reason, triton_fault
from specbench.engine.layers.fused_layer import TOLERANCE, FusedLayer, Fusions, add_norm
from specbench.engine.layers.merged import Product
from specbench.engine.layers.parts import Parts, Unlike, norm_of, parts_of
from specbench.engine.layers.pieces import PLAIN, Attend, Rotary, Store

if TYPE_CHECKING:
    from specbench.engine.heads.head_rows import HeadRows

Piece = Literal["norm", "attention", "keep", "mlp"]
PIECES: tuple[Piece, ...] = get_args(Piece)


class HeadKernels(Fusions[Piece]):
    """Kernels for those pieces of a head's layers that they support.

    The attention modules of ``layers`` must have ``layer_idx``, ``scaling`` and ``sliding_window``.
    """

    def __init__(self, layers: Sequence[nn.Module], cache: StaticCache) -> None:
        super().__init__(PIECES)
        self._norms: dict[nn.Module, Any] = {}
        parts = [_parts(layer, cache) for layer in layers]
        fused = [self.fuse(each, cache) for each in parts]
        self.layers = {each.attention.index: layer for each, layer in zip(parts, fused, strict=True)}
        self.mlps = {each.mlp_module: layer for each, layer in zip(parts, fused, strict=True)}

    def fuse(self, parts: Parts, cache: StaticCache) -> Any:
        """Return what computes a layer, with the methods of :class:`FusedLayer`."""
        if why := triton_fault(next(parts.mlp_module.parameters()).device):
            raise Unlike(why)
        return FusedLayer(parts)

    @property
    def products(self) -> list[Product]:
        """All products of the layers."""
        return [product for each in self.layers.values() for product in each.products]

    def of(self, rows: HeadRows) -> KernelPieces:
        """Pieces over some rows."""
        return KernelPieces(self, rows)

    def choose(self, piece: Piece, own: Callable[[], Tensor], ours: Callable[[], Tensor]) -> Tensor:
        """Compute a piece with ``own`` (torch) or ``ours`` (kernels); while learning, compare both and use torch."""
        if not self.learning:
            return ours() if piece in self.on else own()
        expected = own().clone()  # both may write to the same memory
        if piece not in self.why_not:
            self.on.add(piece)
            if why := _fault(expected, ours):
                self.leave(piece, why)
        return own()

    def norm(self, norm: nn.Module, stream: Tensor, branch: Tensor | None) -> tuple[Tensor, Tensor]:
        """(norm of the sum, the sum) of ``stream`` and ``branch``, rows [N, H]."""
        if norm not in self._norms:
            self._norms[norm] = norm_of(norm)
        return add_norm(stream, branch, self._norms[norm])


class KernelPieces:
    """:class:`specbench.engine.layers.pieces.Pieces` over the rows of a pass."""

    def __init__(self, kernels: HeadKernels, rows: HeadRows) -> None:
        self._kernels, self._rows = kernels, rows

    def norm(self, norm: nn.Module, stream: Tensor, branch: Tensor | None = None) -> tuple[Tensor, Tensor]:
        total = stream

        def own() -> Tensor:
            nonlocal total
            normed, total = PLAIN.norm(norm, stream, branch)
            return normed

        def ours() -> Tensor:
            nonlocal total
            flat = None if branch is None else branch.flatten(0, 1)
            normed, total = (_as(stream, each) for each in self._kernels.norm(norm, stream.flatten(0, 1), flat))
            return normed

        return self._kernels.choose("norm", own, ours), total

    def attention(self, layer: int, module: Any, inner: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        def ours() -> Tensor:
            self._wipe(layer)
            fused, rows = self._kernels.layers[layer], self._rows
            return _as(inner, fused.attention(inner.flatten(0, 1), _flat(rotary), rows, rows.step))

        return self._kernels.choose("attention", lambda: PLAIN.attention(layer, module, inner, rotary, attend), ours)

    def keep(self, layer: int, module: Any, inner: Tensor, rotary: Rotary, store: Store) -> None:
        def own() -> Tensor:
            PLAIN.keep(layer, module, inner, rotary, store)
            return self._kept(layer)

        def ours() -> Tensor:
            self._wipe(layer)
            self._kernels.layers[layer].keep(inner.flatten(0, 1), _flat(rotary), self._rows)
            return self._kept(layer)

        self._kernels.choose("keep", own, ours)

    def mlp(self, module: nn.Module, inner: Tensor) -> Tensor:
        def ours() -> Tensor:
            return _as(inner, self._kernels.mlps[module].mlp(inner.flatten(0, 1)))

        return self._kernels.choose("mlp", lambda: PLAIN.mlp(module, inner), ours)

    def _kept(self, layer: int) -> Tensor:
        """Stored keys and values of these rows, for the comparison; arbitrary unless learning."""
        keys, values, layout, lengths = self._rows.place(layer)
        if not self._kernels.learning:
            return keys
        cells = layout.cells(lengths, keys.shape[2])
        return torch.cat([each[layout.owner, :, cells].flatten(1) for each in (keys, values)], dim=1)

    def _wipe(self, layer: int) -> None:
        """Clear the keys and values that torch stored, so that the kernels have to store them again."""
        if self._kernels.learning:
            *stored, layout, lengths = self._rows.place(layer)
            for each in stored:
                each[layout.owner, :, layout.cells(lengths, each.shape[2])] = 0


def _fault(expected: Tensor, ours: Callable[[], Tensor]) -> str:
    """Return what is wrong with a piece, or an empty string; the meta device cannot be checked."""
    try:
        if (got := ours()).is_meta:
            return ""
        found = float((got - expected).float().norm() / expected.float().norm().clamp_min(1e-30))
    except Exception as error:  # a compiler or a check of shapes may reject this head with any error
        return reason(error)
    return "" if found <= TOLERANCE[expected.dtype] else f"its relative error is {found:.2g}"


def _parts(layer: nn.Module, cache: StaticCache) -> Parts:
    attention: Any = layer.self_attn
    index, heads = attention.layer_idx, attention.q_proj.out_features // attention.head_dim
    how = LayerAttention(attention.scaling, Sight(attention.sliding_window))
    calls = Calls({index: how}, {index: heads})
    return parts_of(layer, cache.shapes, calls, apart=("hidden_norm", "input_layernorm"))


def _flat(rotary: Rotary) -> Rotary:
    cos, sin = (each.flatten(0, 1)[None] for each in rotary)
    return cos, sin


def _as(rows: Tensor, flat: Tensor) -> Tensor:
    """Reshape [N, H] to [S, n, H]."""
    return flat.view(*rows.shape[:2], -1)
