"""Fused layers: a decoder layer in few kernels, for GPUs, where at few rows each kernel costs more than what it reads.

A layer of Llama's kind (:mod:`specbench.engine.parts`) takes nine launches: residual add and norm, one product for
query, key and value, norms of heads with the rotary embedding and the store to the cache, attention (two where many
rows split a cache), the output product, residual add and norm, one product for gate and up, the activation, and the
last product. What a layer adds to its residual stream is added where the next layer, or the norm behind the last one,
reads it.

Which of it a model gets is settled at load (:meth:`FusedLayers.learn`): each layer is run over random rows as
transformers has it and as we do, and what differs by more than rounding is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from specbench.engine.attention.interface import Calls, UnsupportedAttention
from specbench.engine.cache import StaticCache
from specbench.engine.fast_paths import reason, triton_fault
from specbench.engine.merged import Linear, Product, by_shape
from specbench.engine.parts import Attention, Gated, Norm, Parts, Unlike, norm_of, parts_of
from specbench.engine.step import decoder_layers

Fusion = Literal["norm", "attention", "mlp"]
FUSIONS: tuple[Fusion, ...] = get_args(Fusion)
# Relative error of what a layer adds, between two orders of the same arithmetic; a wrong part moves it by its own size.
# A layer that amplifies rounding may be off by _NOISE times as much as a rounding of its input moves it, but by no more
# than _CEILING times the tolerance.
_NOISE, _CEILING = 3.0, 3.0
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}


class FusedLayers:
    """Switches a model's decoder layers between transformers' code and few kernels."""

    def __init__(self, model: Any, cache: StaticCache, calls: Calls, by: Linear = nn.functional.linear) -> None:
        if why := triton_fault(model.device):
            raise Unlike(why)
        self._layers = decoder_layers(model)
        self._parts = [parts_of(layer, cache.shapes, calls, any_mlp=True) for layer in self._layers]
        self._products: dict[nn.Module, Product] = {}
        for parts in self._parts:
            for linears in _together(parts):
                self._products[linears[0]] = Product(linears, by)
        self._device: torch.device = model.device
        self._last = _last_norm(model, self._layers)
        head = model.get_output_embeddings()
        self._head, self._by = (head if type(head) is nn.Linear else None), by
        self.on: set[Fusion] = set(FUSIONS)
        self.why_not: dict[Fusion, str] = {}
        if not any(parts.mlp for parts in self._parts):
            self._leave("mlp", "its MLP is not of the kind")
        self._left: _Left | None = None
        self._learning = False

    def attach(self) -> None:
        """Runs fused layers from now on."""
        for at, layer in enumerate(self._layers):
            layer.__dict__["forward"] = MethodType(_Layer(self, at), layer)
        if self._last is not None:
            self._last.module.__dict__["forward"] = MethodType(self._behind_the_last, self._last.module)
        if self._head is not None:
            self._head.__dict__["forward"] = MethodType(self._logits, self._head)

    def detach(self) -> None:
        """Gives the layers their own forward back."""
        for module in (*self._layers, *([self._last.module] if self._last else []), self._head):
            if module is not None:
                module.__dict__.pop("forward", None)

    def weights(self) -> dict[tuple[int, int], list[Tensor]]:
        """By (outputs, inputs) the weights [outputs, inputs] of that shape that products read."""
        last = [] if self._head is None else [self._head.weight.detach()]
        return by_shape([*(product.weight for product in self._products.values()), *last])

    @contextmanager
    def learn(self) -> Iterator[None]:
        """Forwards inside run the model's own layers, beside which ours are tried; what differs is not used then."""
        self._learning = True
        try:
            yield
        finally:
            self._learning = False

    # ------------------------------------------------------------------ a layer

    def run(self, at: int, hidden: Tensor, given: Mapping[str, Any]) -> Tensor:
        """Output [1, N, size] of layer ``at``; what it adds at last may be left for its reader to add."""
        if self._learning:
            generator = torch.Generator(hidden.device).manual_seed(at)
            rows = torch.randn(hidden.shape, generator=generator, dtype=hidden.dtype, device=hidden.device)
            self._try(at, rows, given)
            return _own(self._layers[at], hidden, given)
        return self._fused(at, hidden, given, self.on)

    def _fused(self, at: int, hidden: Tensor, given: Mapping[str, Any], on: set[Fusion]) -> Tensor:
        parts = self._parts[at]
        stream, branch, after = self._taken(hidden, at)
        normed, stream = _add_norm(stream, branch, parts.before_attention, after, on)
        branch = self._attention(parts.attention, normed, given, on)
        normed, stream = _add_norm(stream, branch, parts.before_mlp, parts.after_attention, on)
        if parts.mlp is not None and "mlp" in on:
            branch = self._mlp(parts.mlp, normed)
        else:
            branch = parts.mlp_module(normed[None])
            branch = branch[0].flatten(0, -2) if isinstance(branch, tuple) else branch.flatten(0, -2)
        heard = self._layers[at]._forward_hooks or (at == len(self._layers) - 1 and self._last is None)
        if heard or self._learning or "norm" not in on:
            return _sum(stream, branch, parts.after_mlp)[None]
        self._left = _Left(stream[None], branch, parts.after_mlp)
        return self._left.stream

    def _taken(self, hidden: Tensor, at: int) -> tuple[Tensor, Tensor | None, Norm | None]:
        """The residual stream [N, size], and what is still to be added to it."""
        left, self._left = self._left, None
        if left is None or at == 0:  # what a forward that was broken off has left is no longer wanted
            return hidden[0], None, None
        if hidden is not left.stream:
            raise UnsupportedAttention("this model changes what goes from layer to layer, unseen by fused layers")
        return hidden[0], left.branch, left.norm

    def _behind_the_last(self, module: nn.Module, x: Tensor) -> Tensor:
        assert self._last is not None
        if self._left is None:
            own: Tensor = type(module).forward(module, x)
            return own
        stream, branch, after = self._taken(x, len(self._layers))
        return _add_norm(stream, branch, self._last, after, self.on)[0][None]

    def _logits(self, module: nn.Linear, x: Tensor) -> Tensor:
        return self._by(x, module.weight, module.bias)

    def _attention(self, parts: Attention, normed: Tensor, given: Mapping[str, Any], on: set[Fusion]) -> Tensor:
        if "attention" not in on:
            output: Tensor = parts.module(hidden_states=normed[None], **given)[0]
            return output.flatten(0, -2)
        from specbench.engine.kernels.rotate import rotate  # triton is not everywhere

        heads = parts.heads
        sizes = heads.heads * heads.size, heads.kv_heads * heads.size, heads.kv_heads * heads.value_size
        query, key, value = self._products[parts.inputs[0]](normed).split(sizes, -1)
        keys, values, layout, lengths = given["past_key_values"].place(parts.index)
        turned = rotate((query, key, value), parts, given["position_embeddings"], keys, values, layout, lengths)
        attended = given["step"](turned, keys, values, heads.scale, heads.window)
        return self._products[parts.output](attended.flatten(2)[0])

    def _mlp(self, parts: Gated, normed: Tensor) -> Tensor:
        from specbench.engine.kernels.gated import gated

        return self._products[parts.down](gated(self._products[parts.inputs[0]](normed), parts.activation))

    # ------------------------------------------------------------------ what a model gets

    def _try(self, at: int, rows: Tensor, given: Mapping[str, Any]) -> None:
        """Turns off what computes something else than the layer itself, over ``rows``."""
        layer = self._layers[at]
        own = _own(layer, rows, given)

        def off(other: Tensor) -> float:
            return float((other - own).float().norm() / (own - rows).float().norm().clamp_min(1e-30))

        def noise() -> float:
            step = torch.finfo(rows.dtype).eps * (2 * (torch.arange(rows.shape[-1], device=rows.device) % 2) - 1)
            return _NOISE * off(_own(layer, (rows.float() * (1 + step)).to(rows.dtype), given))

        def fault(on: Iterable[Fusion]) -> str:
            """What is wrong with it; empty where nothing is."""
            self._left = None
            try:
                ours = self._fused(at, rows, given, set(on))
            except Exception as error:  # whatever a compiler, or a check of shapes, has to say of this model
                return f"layer {at}: {reason(error)}"
            found, bound = off(ours), TOLERANCE[rows.dtype]
            right = found <= bound or found <= min(noise(), _CEILING * bound)
            return "" if right else f"layer {at} comes out {found:.2g} off"

        if not fault(self.on):
            return
        for fusion in FUSIONS:
            if fusion in self.on and (why := fault([fusion])):
                self._leave(fusion, why)
        if why := fault(self.on):
            for fusion in (*self.on,):
                self._leave(fusion, why)
        if not self.on:
            raise Unlike(f"its layers compute something else than their parts say: {self.why_not[FUSIONS[0]]}")

    def _leave(self, fusion: Fusion, why: str) -> None:
        self.on.discard(fusion)
        self.why_not[fusion] = why

    def report(self) -> dict[str, Any]:
        """Which fusions run, why the others do not, and whether kernels start while the one before ends."""
        from specbench.engine.kernels import dependent  # triton is not everywhere

        return {
            "fusions": [each for each in FUSIONS if each in self.on],
            "not_fused": self.why_not,
            "dependent_launches": dependent.why_not(self._device) or "on",
        }


class _Left(NamedTuple):
    """What a layer put out: the residual stream [1, N, size], and a branch [N, size] that is to be added to it."""

    stream: Tensor
    branch: Tensor
    norm: Norm | None


class _Layer:
    """A decoder layer's forward: fused in a step of the engine, else the layer's own."""

    def __init__(self, fused: FusedLayers, at: int) -> None:
        self._fused, self._at = fused, at

    def __call__(self, layer: nn.Module, hidden_states: Tensor, *args: Any, **given: Any) -> Any:
        cache, rotary = given.get("past_key_values"), given.get("position_embeddings")
        # transformers' own loop, or a check that listens to the layers' calls
        if args or given.get("step") is None or given.get("calls") is not None or rotary is None:
            return type(layer).forward(layer, hidden_states, *args, **given)
        if not isinstance(cache, StaticCache):
            raise UnsupportedAttention("this model gives its layers another cache than the engine's")
        return self._fused.run(self._at, hidden_states, given)


def _together(parts: Parts) -> list[tuple[nn.Linear, ...]]:
    """The products of a layer."""
    found = [parts.attention.inputs, (parts.attention.output,)]
    return found + ([parts.mlp.inputs, (parts.mlp.down,)] if parts.mlp else [])


def _last_norm(model: Any, layers: Sequence[nn.Module]) -> Norm | None:
    """The norm behind the last layer, where it is the only one outside of layers."""
    inside = {module for layer in layers for module in layer.modules()}
    outside = [m for m in model.modules() if m not in inside and type(m).__name__.endswith("RMSNorm")]
    return norm_of(outside[0]) if len(outside) == 1 else None


def _own(layer: nn.Module, hidden: Tensor, given: Mapping[str, Any]) -> Tensor:
    """What the layer itself puts out."""
    output = type(layer).forward(layer, hidden, **given)
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def _add_norm(
    stream: Tensor, branch: Tensor | None, norm: Norm, after: Norm | None, on: set[Fusion]
) -> tuple[Tensor, Tensor]:
    """(norm of the sum, sum), as :func:`specbench.engine.kernels.norm.add_norm` has it."""
    if "norm" in on:
        from specbench.engine.kernels.norm import add_norm

        return add_norm(stream, branch, norm, after)
    total = stream if branch is None else _sum(stream, branch, after)
    return norm.module(total), total


def _sum(stream: Tensor, branch: Tensor, after: Norm | None) -> Tensor:
    return stream + (branch if after is None else after.module(branch))
