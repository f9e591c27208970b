"""Kernel pieces: a draft head's layers in few launches, by the kernels that fuse a target's layers.

What ``pieces`` says, over merged products. Each piece of each layer is tried once beside torch's,
over random rows, before the first round; what differs by more than rounding stays torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from specbench.engine.attention.interface import Calls
from specbench.engine.cache import StaticCache
from specbench.engine.fast_paths import reason, triton_fault
from specbench.engine.layers.fused_layers import TOLERANCE
from specbench.engine.layers.pieces import PLAIN, Attend, Rotary, Store
from specbench.engine.merged import Product
from specbench.engine.parts import Attention, Gated, Norm, Parts, Unlike, norm_of, parts_of

if TYPE_CHECKING:
    from specbench.engine.heads.head_rows import HeadRows

Piece = Literal["norm", "attention", "keep", "mlp"]
PIECES: tuple[Piece, ...] = get_args(Piece)


class HeadKernels:
    """A head's layers, as far as kernels take them.

    ``layers`` say ``layer_idx``, ``scaling`` and ``sliding_window`` of their attention. ``learning``: pieces are
    torch's at the moment, and ours are tried next to them.
    """

    def __init__(self, layers: Sequence[nn.Module], cache: StaticCache) -> None:
        if why := triton_fault(next(layers[0].parameters()).device):
            raise Unlike(why)
        self._attention: dict[int, Attention] = {}
        self._mlp: dict[nn.Module, Gated] = {}
        self._norms: dict[nn.Module, Norm] = {}
        self._products: dict[nn.Module, Product] = {}
        for layer in layers:
            parts = _parts(layer, cache)
            assert parts.mlp is not None
            self._attention[parts.attention.index] = parts.attention
            self._mlp[parts.mlp_module] = parts.mlp
            for linears in (parts.attention.inputs, (parts.attention.output,), parts.mlp.inputs, (parts.mlp.down,)):
                self._products[linears[0]] = Product(linears)
        self.on: set[Piece] = set()
        self.why_not: dict[Piece, str] = {}
        self.learning = False

    @property
    def products(self) -> Iterable[Product]:
        """Those that its layers run."""
        return self._products.values()

    def of(self, rows: HeadRows) -> KernelPieces:
        """The pieces over some rows."""
        return KernelPieces(self, rows)

    @contextmanager
    def learn(self) -> Iterator[None]:
        """Inside, pieces are torch's, and ours are tried beside them."""
        self.learning = True
        try:
            yield
        finally:
            self.learning = False

    def report(self) -> dict[str, Any]:
        """Which pieces are kernels', and why the others are not."""
        return {"fusions": [each for each in PIECES if each in self.on], "not_fused": self.why_not}

    def choose(self, piece: Piece, own: Callable[[], Tensor], ours: Callable[[], Tensor]) -> Tensor:
        """What computes a piece: of ``own``, by torch, and ``ours`` the one that is to."""
        if not self.learning:
            return ours() if piece in self.on else own()
        expected = own().clone()  # both may write to one place
        if piece not in self.why_not:
            self.on.add(piece)
            if why := _fault(expected, ours):
                self.on.discard(piece)
                self.why_not[piece] = why
        return own()

    # ------------------------------------------------------------------ by kernels; N rows, all texts' together

    def norm(self, norm: nn.Module, stream: Tensor, branch: Tensor | None) -> tuple[Tensor, Tensor]:
        """(the norm of the sum, the sum) of rows [N, H]."""
        from specbench.engine.kernels.norm import add_norm  # triton is not everywhere

        if norm not in self._norms:
            self._norms[norm] = norm_of(norm)
        return add_norm(stream, branch, self._norms[norm])

    def attention(self, rows: HeadRows, layer: int, inner: Tensor, rotary: Rotary) -> Tensor:
        """Rows [N, width] through a layer's attention: [N, H]."""
        from specbench.engine.kernels.rotate import rotate

        parts = self._attention[layer]
        heads = parts.heads
        sizes = heads.heads * heads.size, heads.kv_heads * heads.size, heads.kv_heads * heads.value_size
        query, key, value = self._products[parts.inputs[0]](inner).split(sizes, -1)
        keys, values, layout, lengths = rows.place(layer)
        turned = rotate((query, key, value), parts, _flat(rotary), keys, values, layout, lengths)
        attended = rows.step(turned, keys, values, heads.scale, heads.window)
        return self._products[parts.output](attended.flatten(2)[0])

    def keep(self, rows: HeadRows, layer: int, inner: Tensor, rotary: Rotary) -> None:
        """Stores keys and values of rows [N, width]."""
        from specbench.engine.kernels.rotate import rotate

        parts = self._attention[layer]
        heads = parts.heads
        sizes = heads.kv_heads * heads.size, heads.kv_heads * heads.value_size
        key, value = self._products[parts.inputs[0]](inner, heads.heads * heads.size).split(sizes, -1)
        keys, values, layout, lengths = rows.place(layer)
        alone = replace(parts, heads=replace(heads, heads=0))
        rotate((key[:, :0], key, value), alone, _flat(rotary), keys, values, layout, lengths)

    def mlp(self, module: nn.Module, inner: Tensor) -> Tensor:
        """Rows [N, H] through an MLP."""
        from specbench.engine.kernels.gated import gated

        parts = self._mlp[module]
        return self._products[parts.down](gated(self._products[parts.inputs[0]](inner), parts.activation))


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
            return _as(inner, self._kernels.attention(self._rows, layer, inner.flatten(0, 1), rotary))

        return self._kernels.choose("attention", lambda: PLAIN.attention(layer, module, inner, rotary, attend), ours)

    def keep(self, layer: int, module: Any, inner: Tensor, rotary: Rotary, store: Store) -> None:
        def own() -> Tensor:
            PLAIN.keep(layer, module, inner, rotary, store)
            return self._kept(layer)

        def ours() -> Tensor:
            self._wipe(layer)
            self._kernels.keep(self._rows, layer, inner.flatten(0, 1), rotary)
            return self._kept(layer)

        self._kernels.choose("keep", own, ours)

    def mlp(self, module: nn.Module, inner: Tensor) -> Tensor:
        return self._kernels.choose(
            "mlp", lambda: PLAIN.mlp(module, inner), lambda: _as(inner, self._kernels.mlp(module, inner.flatten(0, 1)))
        )

    def _kept(self, layer: int) -> Tensor:
        """Keys and values of these rows, to be compared; of no meaning otherwise."""
        keys, values, layout, lengths = self._rows.place(layer)
        if not self._kernels.learning:
            return keys
        cells = layout.cells(lengths, keys.shape[2])
        return torch.cat([each[layout.owner, :, cells].flatten(1) for each in (keys, values)], dim=1)

    def _wipe(self, layer: int) -> None:
        """What is to be tried shall not find what torch has stored."""
        if self._kernels.learning:
            *stored, layout, lengths = self._rows.place(layer)
            for each in stored:
                each[layout.owner, :, layout.cells(lengths, each.shape[2])] = 0


def _fault(expected: Tensor, ours: Callable[[], Tensor]) -> str:
    """What is wrong with a piece; empty where nothing is, as on a device that computes nothing."""
    try:
        if (got := ours()).is_meta:
            return ""
        found = float((got - expected).float().norm() / expected.float().norm().clamp_min(1e-30))
    except Exception as error:  # whatever a compiler, or a check of shapes, has to say of this head
        return reason(error)
    return "" if found <= TOLERANCE[expected.dtype] else f"it comes out {found:.2g} off"


def _parts(layer: nn.Module, cache: StaticCache) -> Parts:
    attention: Any = layer.self_attn
    index, heads = attention.layer_idx, attention.q_proj.out_features // attention.head_dim
    calls = Calls({index: attention.sliding_window}, {index: heads}, {index: attention.scaling})
    return parts_of(layer, cache.shapes, calls, apart=("hidden_norm",))


def _flat(rotary: Rotary) -> Rotary:
    cos, sin = (each.flatten(0, 1)[None] for each in rotary)
    return cos, sin


def _as(rows: Tensor, flat: Tensor) -> Tensor:
    """[N, H] as [S, n, H]."""
    return flat.view(*rows.shape[:2], -1)
