"""Run a draft head's layers and products on a CPU with the C++ that runs a target's layers."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from specbench.engine.cache import StaticCache
from specbench.engine.cpu import library
from specbench.engine.layers.cpu_structures import Structures
from specbench.engine.layers.kernel_pieces import HeadKernels
from specbench.engine.layers.merged import serve
from specbench.engine.layers.parts import Parts, norm_of
from specbench.engine.ops import TorchOps

if TYPE_CHECKING:
    from specbench.engine.heads.head_rows import HeadRows


class CpuOps(TorchOps):
    """Operations of a head's round, of which the C++ finds the best tokens."""

    def __init__(self) -> None:
        self.work = library.Work(library.open_cpu_library())
        self.structures = Structures(self.work)

    def best(self, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
        return super().best(scores, count) if scores.dtype is torch.float64 else self.work.best(scores.float(), count)

    def multiply(self, modules: Iterable[nn.Module]) -> None:
        """Compute the linear layers of ``modules`` with the C++, except during training."""
        for module in modules:
            for each in module.modules():
                if type(each) is nn.Linear and _plain(each.weight):
                    self._serve(each)

    def _serve(self, linear: nn.Linear) -> None:
        product = self.structures.linear(linear)

        def by(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return self.work.linear(product, x).to(weight.dtype)

        serve(linear, by)


class CpuHead(HeadKernels):
    """The C++ for those pieces of a head's layers that it supports."""

    def __init__(self, layers: Sequence[nn.Module], cache: StaticCache, ops: CpuOps) -> None:
        self.work, self._structures, self._capacity = ops.work, ops.structures, cache.capacity
        # Only the head's pass holds the cache, which is then freed with the pass at once.
        self._aimed: weakref.ref[HeadRows] | None = None
        super().__init__(layers, cache)

    def fuse(self, parts: Parts, cache: StaticCache) -> CpuLayer:
        return CpuLayer(self, self._structures.layer(parts, cache))

    def norm(self, norm: nn.Module, stream: Tensor, branch: Tensor | None) -> tuple[Tensor, Tensor]:
        if norm not in self._norms:
            self._norms[norm] = self._structures.norm(norm_of(norm))
        return self.work.norm(self._norms[norm], stream, branch)

    def aim(self, rows: HeadRows) -> None:
        """Compute the next layers over these rows."""
        if self._aimed is None or rows is not self._aimed():
            *_, layout, start = rows.place(0)
            self.work.aim(rows.seen, layout, self._capacity, start=start, offset=rows.slots.start)
            self._aimed = weakref.ref(rows)


class CpuLayer:
    """Operations of a layer, see :class:`specbench.engine.layers.fused_layer.FusedLayer`."""

    def __init__(self, head: CpuHead, layer: library.Layer) -> None:
        self._head, self._layer = head, layer

    def attention(self, normed: Tensor, rotary: Sequence[Tensor], rows: HeadRows, step: Any) -> Tensor:
        self._head.aim(rows)
        return self._head.work.attention(self._layer, normed, rotary)

    def keep(self, normed: Tensor, rotary: Sequence[Tensor], rows: HeadRows) -> None:
        self._head.aim(rows)
        self._head.work.attention(self._layer, normed, rotary, stores_only=True)

    def mlp(self, normed: Tensor) -> Tensor:
        return self._head.work.mlp(self._layer, normed)


def _plain(weight: Tensor) -> bool:
    """Whether the C++ can multiply with these weights."""
    packed = is_traceable_wrapper_subclass(weight) or not weight.is_contiguous()
    return weight.dtype in library.TYPES and weight.is_cpu and not packed
