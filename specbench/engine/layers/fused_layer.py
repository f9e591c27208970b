"""Run a decoder layer in few kernels: merged products, and Triton for norms, rotary embedding and activation.

Targets and draft heads use the same class: both have rows and a cache for keys and values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MethodType
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from specbench.engine.attention.interface import Backend
from specbench.engine.layers.merged import Linear, Product
from specbench.engine.layers.parts import Norm, Parts
from specbench.engine.layout import Layout

#: Relative error between two orders of the same arithmetic; a wrong part changes the result by about its own size.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}
#: cos and sin, [1, N, D] each.
FlatRotary = tuple[Tensor, Tensor]
F = TypeVar("F", bound=str)


class KeyValues(Protocol):
    """A cache and the cells that the rows of a step are stored in."""

    def place(self, layer: int) -> tuple[Tensor, Tensor, Layout, Tensor]:
        """(keys, values, layout, lengths) of a layer."""
        ...


class FusedLayer:
    """Operations of a layer over the N rows of all slots together."""

    def __init__(self, parts: Parts, by: Linear = nn.functional.linear) -> None:
        attention, mlp = parts.attention, parts.mlp
        self.parts = parts
        self.products = [Product(attention.inputs, by), Product((attention.output,), by)]
        self.products += [Product(mlp.inputs, by), Product((mlp.down,), by)] if mlp else []

    def attention(self, normed: Tensor, rotary: FlatRotary, cache: KeyValues, step: Backend) -> Tensor:
        """Run rows [N, width] through attention and its output product: [N, H]; store their keys and values."""
        heads = self.parts.attention.heads
        sizes = heads.heads * heads.size, heads.kv_heads * heads.size, heads.kv_heads * heads.value_size
        query, keys, values = self._turned(self.products[0](normed).split(sizes, -1), rotary, cache)
        return self.products[1](step(query, keys, values, heads.how).flatten(2)[0])

    def keep(self, rows: Tensor, rotary: FlatRotary, cache: KeyValues) -> None:
        """Store the keys and values of rows [N, width], which need no other result of the layer."""
        heads = self.parts.attention.heads
        sizes = heads.kv_heads * heads.size, heads.kv_heads * heads.value_size
        key, value = self.products[0](rows, heads.heads * heads.size).split(sizes, -1)
        self._turned((key[:, :0], key, value), rotary, cache, queries=0)

    def mlp(self, normed: Tensor) -> Tensor:
        """Run rows [N, H] through the gated MLP."""
        from specbench.engine.kernels.gated import gated  # triton may not be installed

        assert self.parts.mlp is not None
        return self.products[3](gated(self.products[2](normed), self.parts.mlp.activation))

    def _turned(
        self, parts: Any, rotary: FlatRotary, cache: KeyValues, queries: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotate queries and keys, store keys and values; return the queries, and keys and values of all cells."""
        from specbench.engine.kernels.rotate import rotate

        own = self.parts.attention
        own = own if queries is None else replace(own, heads=replace(own.heads, heads=queries))
        keys, values, layout, lengths = cache.place(own.index)
        return rotate(parts, own, rotary, keys, values, layout, lengths), keys, values


def add_norm(stream: Tensor, branch: Tensor | None, norm: Norm, after: Norm | None = None) -> tuple[Tensor, Tensor]:
    """Compute (norm of the sum, the sum) of a residual stream [N, H] and a branch with the kernel."""
    from specbench.engine.kernels.norm import add_norm as kernel

    return kernel(stream, branch, norm, after)


class Fusions(Generic[F]):
    """Which parts run as kernels, and why the others do not. Each is compared with torch's code at load.

    ``learning``: whether torch currently computes the results and kernels are compared with it.
    """

    def __init__(self, names: tuple[F, ...]) -> None:
        self.on: set[F] = set()
        self.why_not: dict[F, str] = {}
        self.learning = False
        self._names = names

    @contextmanager
    def learn(self) -> Iterator[None]:
        """Compare kernels with torch in this context; those that differ by more than rounding are not used later."""
        self.learning = True
        try:
            yield
        finally:
            self.learning = False

    def leave(self, name: F, why: str) -> None:
        """Let torch run a part."""
        self.on.discard(name)
        self.why_not[name] = why

    def report(self) -> dict[str, Any]:
        """Parts that run as kernels, for the run's record."""
        return {"fusions": [each for each in self._names if each in self.on], "not_fused": self.why_not}


class Forwards(ABC):
    """Replace modules' forwards with our own; a decoder layer uses ours only in a step of the engine."""

    def __init__(self) -> None:
        self._forwards: list[tuple[nn.Module, Callable[..., Any]]] = []

    @abstractmethod
    def serves(self, step: Any, args: tuple[Any, ...]) -> bool:
        """Whether our layers can compute a step that calls layers with positional arguments ``args``."""

    @abstractmethod
    def run(self, at: int, hidden: Tensor, given: Mapping[str, Any]) -> Tensor:
        """Compute the output of layer ``at``, called with keyword arguments ``given``."""

    def forward_of(self, at: int) -> Callable[..., Any]:
        """Return the forward of layer ``at``."""

        def forward(layer: nn.Module, hidden_states: Tensor, *args: Any, **given: Any) -> Any:
            # In transformers' own loop, or in a check that records the layers' calls.
            listens = given.get("calls") is not None or given.get("position_embeddings") is None
            if listens or not self.serves(given.get("step"), args):
                return type(layer).forward(layer, hidden_states, *args, **given)
            return self.run(at, hidden_states, given)

        return forward

    def attach(self) -> None:
        """Use our code from now on."""
        for module, forward in self._forwards:
            module.__dict__["forward"] = MethodType(forward, module)

    def detach(self) -> None:
        """Give the modules their own forwards back."""
        for module, _ in self._forwards:
            module.__dict__.pop("forward", None)
