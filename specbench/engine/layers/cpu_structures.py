"""Structures that describe a model's decoder layers and their parts to the C++."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specbench.engine.cache import StaticCache
from specbench.engine.cpu import library
from specbench.engine.layers.parts import Norm, Parts, Unlike


class Structures:
    """Make structures; they point to tensors that live as long as this object, and to a cache that the caller holds.

    ``work``: holds float32 weights in bfloat16 where that is exact, as it is for weights from files in bfloat16. Their
    products have the same bits and read half the bytes. None: weights stay as they are.
    """

    def __init__(self, work: library.Work | None = None) -> None:
        self._work = work
        self._kept: list[Tensor] = []
        self._linears: dict[nn.Linear, library.Linear] = {}
        self.halved = 0  # linear layers whose weights are held in bfloat16

    def layer(self, parts: Parts, cache: StaticCache) -> library.Layer:
        """Structure of a decoder layer that stores its keys and values in ``cache``."""
        attention, mlp, heads = parts.attention, parts.mlp, parts.attention.heads
        assert mlp is not None
        if max(heads.size, heads.value_size) > library.LARGEST_HEAD:
            raise Unlike(f"its head size {max(heads.size, heads.value_size)} is larger than {library.LARGEST_HEAD}")
        found = library.Layer()
        for field, norm in (
            ("before_attention", parts.before_attention), ("after_attention", parts.after_attention),
            ("before_mlp", parts.before_mlp), ("after_mlp", parts.after_mlp),
            ("of_query", attention.of_query), ("of_key", attention.of_key),
        ):  # fmt: skip
            if norm is not None:
                setattr(found, field, self.norm(norm))
        for at, module in enumerate(attention.inputs):
            found.inputs[at] = self.linear(module)
        found.output, found.gate, found.down = map(self.linear, (attention.output, mlp.inputs[0], mlp.down))
        if len(mlp.inputs) > 1:
            found.up = self.linear(mlp.inputs[1])
        if not heads.how.plain:
            raise Unlike("its attention has a soft cap, sinks or chunks")
        scale = heads.size**-0.5 if heads.how.scale is None else heads.how.scale
        window = heads.how.sight.window or 0
        found.heads = library.Heads(heads.heads, heads.kv_heads, heads.size, heads.value_size, window, scale)
        found.hidden, found.inner = found.output.out, found.down.in_
        keys, values = cache.stored(attention.index)
        found.activation, found.type = library.ACTIVATIONS[mlp.activation], library.TYPES[keys.dtype]
        cells = len(keys) * heads.kv_heads * cache.capacity
        found.keys = library.address(keys, keys.dtype, cells * heads.size)
        found.values = library.address(values, keys.dtype, cells * heads.value_size)
        return found

    def norm(self, norm: Norm) -> library.Norm:
        """Structure of a norm."""
        factor = (norm.weight.float() + norm.offset).contiguous()
        self._kept.append(factor)
        return library.Norm(library.address(factor, torch.float32, factor.numel()), norm.eps)

    def linear(self, module: nn.Linear) -> library.Linear:
        """Structure of a linear layer, made once."""
        if module not in self._linears:
            self._linears[module] = self._linear(module)
        return self._linears[module]

    def _linear(self, module: nn.Linear) -> library.Linear:
        bias = None if module.bias is None else module.bias.detach().float().contiguous()
        out, size = module.weight.shape
        found = library.Linear(out=out, in_=size)
        if bias is not None:
            found.bias = library.address(bias, torch.float32, out)
            self._kept.append(bias)
        packed = getattr(module, "packed", None)
        if packed is None:
            weight = module.weight.detach()
            self._kept.append(weight)
            found.weight, found.type = library.address(weight, weight.dtype, out * size), library.TYPES[weight.dtype]
            half = self._work.halve(weight) if self._work and weight.dtype is torch.float32 else None
            if half is not None:
                found.weight, found.type = half, library.TYPES[torch.bfloat16]
                self.halved += 1
            return found
        self._kept += packed.tensors
        quants, scales = packed.quants, packed.scales
        found.weight = library.address(quants, quants.dtype, out * size * packed.bits // 8)
        found.scale = library.address(scales, scales.dtype, out * (size // packed.block if packed.block else 1))
        found.wide = scales.dtype == torch.float32
        found.type = library.TYPES[torch.int8]
        if packed.block:
            found.type, found.shift = library.BLOCKS[packed.bits], packed.block.bit_length() - 1
        if packed.least is not None:
            found.least = library.address(packed.least, scales.dtype, scales.numel())
        return found
