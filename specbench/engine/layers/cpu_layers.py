"""Run a target's decoder layers on a CPU with our own C++ instead of transformers' code.

Supported are decoder layers with the parts of a Llama layer (:mod:`specbench.engine.layers.parts`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from specbench.engine.attention.backends import ReferenceAttention
from specbench.engine.attention.interface import Calls
from specbench.engine.cache import StaticCache
from specbench.engine.cpu import library
from specbench.engine.layers.cpu_structures import Structures
from specbench.engine.layers.fused_layer import Forwards
from specbench.engine.layers.parts import Unlike, norm_of, parts_of, plain_linear
from specbench.engine.program import decoder_layers


class OwnLayers(Forwards):
    """Switch a model's decoder layers and LM head between transformers' code and ours."""

    def __init__(self, model: Any, cache: StaticCache, calls: Calls) -> None:
        if model.dtype not in (torch.float32, torch.bfloat16):
            raise Unlike(f"{model.dtype} is not supported".replace("torch.", ""))
        self._layers, make = decoder_layers(model), Structures()
        self._capacity = cache.capacity
        parts = [parts_of(layer, cache.shapes, calls) for layer in self._layers]
        found = [make.layer(each, cache) for each in parts]
        head = model.get_output_embeddings()
        product = make.linear(plain_linear(head, "LM head"))
        norms = [(module, make.norm(norm_of(module))) for module in self._other_norms(model)]
        self._structures, self._kept = (library.Layer * len(found))(*found), make  # the engine holds the cache
        self._work = library.Work(library.open_cpu_library())
        work = self._work
        self._forwards = [
            *((layer, self.forward_of(at)) for at, layer in enumerate(self._layers)),
            *((module, partial(_without_module, partial(_normed, work, norm))) for module, norm in norms),
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
        self._work.aim(see, see.layout, self._capacity, start=see.starts)
        self._aimed, self._ready = step, {}

    def _other_norms(self, model: nn.Module) -> Iterator[nn.Module]:
        """Norms outside the layers, e.g. the one before the LM head: torch's sums depend on the number of rows."""
        inside = {module for layer in self._layers for module in layer.modules()}
        for module in model.modules():
            if module not in inside and not list(module.children()) and type(module).__name__.endswith("RMSNorm"):
                yield module


def _normed(work: library.Work, norm: library.Norm, x: Tensor) -> Tensor:
    return work.norm(norm, x)[0]


def _without_module(compute: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> Tensor:
    """Forward of a module that ``compute`` replaces."""
    return compute(x)
