"""Run a target's decoder layers on a CPU with our own C++ instead of transformers' code.

Supported are decoder layers with the parts of a Llama layer (:mod:`specbench.engine.layers.parts`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from specbench.engine.attention.backends import ReferenceAttention
from specbench.engine.attention.interface import Calls
from specbench.engine.cache import StaticCache
from specbench.engine.cpu import library
from specbench.engine.layers.fused_layer import Forwards
from specbench.engine.layers.parts import Norm, Parts, Unlike, norm_of, parts_of, plain_linear
from specbench.engine.program import decoder_layers


class OwnLayers(Forwards):
    """Switch a model's decoder layers and LM head between transformers' code and ours."""

    def __init__(self, model: Any, cache: StaticCache, calls: Calls) -> None:
        if model.dtype not in (torch.float32, torch.bfloat16):
            raise Unlike(f"{model.dtype} is not supported".replace("torch.", ""))
        self._kept: list[Tensor] = []  # tensors that the C++ structures point to
        self._layers = decoder_layers(model)
        self._capacity, self._slots = cache.capacity, len(cache.stored(next(iter(cache.shapes)))[0])
        parts = [parts_of(layer, cache.shapes, calls) for layer in self._layers]
        found = [self._layer(each, cache) for each in parts]
        head = model.get_output_embeddings()
        product, norms = self._linear(plain_linear(head, "LM head")), self._other_norms(model)
        self._structures = (library.Layer * len(found))(*found)
        self._work = library.Work(library.open_cpu_library())
        work = self._work
        self._forwards = [
            *((layer, self.forward_of(at)) for at, layer in enumerate(self._layers)),
            *((module, partial(_without_module, partial(work.norm, norm))) for module, norm in norms),
            (head, partial(_without_module, partial(work.linear, product))),
        ]
        self._aimed: Any = None
        # Layers with the same rotary embedding run together; the first forward shows which layers these are.
        self._ropes: list[Any] = []
        self._ends: list[int] = []
        self._ready: dict[int, Tensor] = {}  # outputs of layers that have run but are not called yet

    def serves(self, step: Any, args: tuple[Any, ...]) -> bool:
        return isinstance(step, ReferenceAttention)

    def run(self, at: int, hidden: Tensor, given: Mapping[str, Any]) -> Tensor:
        """Output of layer ``at``."""
        step, rotary = given["step"], given["position_embeddings"]
        if step is not self._aimed:
            self._aim(step)
        if at not in self._ready:
            end = self._ends[at] if self._ends else at + 1
            # A layer whose output is not read returns the output of the last one, since the next layers have run too.
            wanted = [at + 1 == end or bool(layer._forward_hooks) for at, layer in enumerate(self._layers)][at:end]
            hidden = hidden.contiguous()
            outputs = [torch.empty_like(hidden) if each else None for each in wanted]
            structures = (library.Layer * (end - at)).from_buffer(self._structures, at * ctypes.sizeof(library.Layer))
            self._work.layers(structures, hidden, outputs, [each.contiguous() for each in rotary])
            self._ready = {at + i: hidden if output is None else output for i, output in enumerate(outputs)}
            if not self._ends:
                self._learn(at, rotary)
        return self._ready.pop(at)

    def _learn(self, at: int, rotary: tuple[Tensor, Tensor]) -> None:
        """Record the rotary embedding of a layer in the first forward."""
        self._ropes = [*self._ropes[:at], rotary]
        if len(self._ropes) < len(self._layers):
            return
        for at in reversed(range(len(self._ropes))):
            alike = at + 1 < len(self._ropes) and self._ropes[at] is self._ropes[at + 1]
            self._ends.insert(0, self._ends[0] if alike else at + 1)
        self._ropes = []

    def _aim(self, step: Any) -> None:
        see = step.visibility
        layout = see.layout
        tensors = (
            layout.slot, layout.first, layout.count, see.lengths, see.depth.int(), see.rows,
        )  # fmt: skip
        self._work.aim(tensors, self._slots, self._capacity)
        self._aimed, self._ready = step, {}

    # ------------------------------------------------------------------ structures of the C++

    def _layer(self, parts: Parts, cache: StaticCache) -> Any:
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
                setattr(found, field, self._norm(norm))
        for at, module in enumerate(attention.inputs):
            found.inputs[at] = self._linear(module)
        found.output, found.gate, found.down = map(self._linear, (attention.output, mlp.inputs[0], mlp.down))
        if len(mlp.inputs) > 1:
            found.up = self._linear(mlp.inputs[1])
        if not heads.how.plain:
            raise Unlike("its attention has a soft cap, sinks or chunks")
        scale = heads.size**-0.5 if heads.how.scale is None else heads.how.scale
        window = heads.how.sight.window or 0
        found.heads = library.Heads(heads.heads, heads.kv_heads, heads.size, heads.value_size, window, scale)
        found.hidden, found.inner = found.output.out, found.down.in_
        keys, values = cache.stored(attention.index)
        found.activation, found.type = library.ACTIVATIONS[mlp.activation], library.TYPES[keys.dtype]
        self._kept += [keys, values]
        cells = self._slots * heads.kv_heads * self._capacity
        found.keys = library.address(keys, keys.dtype, cells * heads.size)
        found.values = library.address(values, keys.dtype, cells * heads.value_size)
        return found

    def _norm(self, norm: Norm) -> library.Norm:
        factor = (norm.weight.float() + norm.offset).contiguous()
        self._kept.append(factor)
        return library.Norm(library.address(factor, torch.float32, factor.numel()), norm.eps)

    def _other_norms(self, model: nn.Module) -> list[tuple[nn.Module, library.Norm]]:
        """Norms outside the layers, e.g. the one before the LM head: torch's sums depend on the number of rows."""
        inside = {module for layer in self._layers for module in layer.modules()}
        found = []
        for module in model.modules():
            if module not in inside and not list(module.children()) and type(module).__name__.endswith("RMSNorm"):
                found.append((module, self._norm(norm_of(module))))
        return found

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


def _without_module(compute: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> Tensor:
    """Forward of a module that ``compute`` replaces."""
    return compute(x)
