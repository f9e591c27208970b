"""Run a target's decoder layers on a GPU in few kernels: with few rows a launch costs more than the memory it reads.

A layer like Llama's (:mod:`.layers.parts`) takes nine launches: residual add and norm, one product for query, key and
value, norms of heads with the rotary embedding and the store to the cache, attention (two launches if many rows split a
cache), the output product, residual add and norm, one product for gate and up, the activation, and the last product.
A layer's last addition to the residual stream happens where the next layer, or the norm after the last layer, reads it.

Which fusions a model gets is decided at load (:meth:`FusedLayers.learn`): each layer runs over random rows with
transformers' code and with ours, and fusions that differ by more than rounding are not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from specbench.engine.attention.backends import ReferenceAttention, TritonAttention
from specbench.engine.attention.flash import FlashAttention
from specbench.engine.attention.interface import Calls, UnsupportedAttention
from specbench.engine.cache import StaticCache
from specbench.engine.fast_paths import reason, triton_fault
from specbench.engine.layers.fused_layer import TOLERANCE, Forwards, FusedLayer, Fusions, add_norm
from specbench.engine.layers.merged import Linear, by_shape
from specbench.engine.layers.parts import Norm, Unlike, norm_of, parts_of
from specbench.engine.program import decoder_layers

Fusion = Literal["norm", "attention", "mlp"]
FUSIONS: tuple[Fusion, ...] = get_args(Fusion)
# For a layer that amplifies rounding, the error may be _NOISE times the change that rounding its input causes, but no
# more than _CEILING times the tolerance.
_NOISE, _CEILING = 3.0, 3.0


class FusedLayers(Forwards, Fusions[Fusion]):
    """Switch a model's decoder layers between transformers' code and few kernels."""

    def __init__(self, model: Any, cache: StaticCache, calls: Calls, by: Linear = nn.functional.linear) -> None:
        if why := triton_fault(model.device):
            raise Unlike(why)
        Forwards.__init__(self)
        Fusions.__init__(self, FUSIONS)
        self._layers = decoder_layers(model)
        self._fused = [FusedLayer(parts_of(layer, cache.shapes, calls, any_mlp=True), by) for layer in self._layers]
        self._device: torch.device = model.device
        self._last = _last_norm(model, self._layers)
        head = model.get_output_embeddings()
        plain = type(head) is nn.Linear and not is_traceable_wrapper_subclass(head.weight)
        self._head, self._by = (head if plain else None), by
        self._forwards += [(layer, self.forward_of(at)) for at, layer in enumerate(self._layers)]
        if self._last is not None:
            self._forwards.append((self._last.module, self._norm_after_layers))
        if self._head is not None:
            self._forwards.append((self._head, self._logits))
        self.on = {*FUSIONS}
        if not any(layer.parts.mlp for layer in self._fused):
            self.leave("mlp", "its MLP is not a supported gated MLP")
        self._left: _Left | None = None

    def weights(self) -> dict[tuple[int, int], list[Tensor]]:
        """Weights [outputs, inputs] that products read, by shape."""
        last = [] if self._head is None else [self._head.weight.detach()]
        return by_shape([*(product.weight for layer in self._fused for product in layer.products), *last])

    # ------------------------------------------------------------------ a layer

    def serves(self, step: Any, args: tuple[Any, ...]) -> bool:
        # In teacher forcing, the step is not a backend: it attends over a cache of its own.
        return isinstance(step, (ReferenceAttention, TritonAttention, FlashAttention)) and not args

    def run(self, at: int, hidden: Tensor, given: Mapping[str, Any]) -> Tensor:
        """Output [1, N, size] of layer ``at``; its last addition may be left to the next layer."""
        if not isinstance(given.get("past_key_values"), StaticCache):
            raise UnsupportedAttention("this model does not pass the engine's cache to its layers")
        if self.learning:
            generator = torch.Generator(hidden.device).manual_seed(at)
            rows = torch.randn(hidden.shape, generator=generator, dtype=hidden.dtype, device=hidden.device)
            self._try(at, rows, given)
            return _own(self._layers[at], hidden, given)
        return self._by_kernels(at, hidden, given, self.on)

    def _by_kernels(self, at: int, hidden: Tensor, given: Mapping[str, Any], on: set[Fusion]) -> Tensor:
        fused = self._fused[at]
        parts = fused.parts
        assert parts.before_attention is not None
        stream, branch, after = self._taken(hidden, at)
        normed, stream = _norm(stream, branch, parts.before_attention, after, on)
        if "attention" in on:
            branch = fused.attention(normed, given["position_embeddings"], given["past_key_values"], given["step"])
        else:
            branch = parts.attention.module(hidden_states=normed[None], **given)[0].flatten(0, -2)
        normed, stream = _norm(stream, branch, parts.before_mlp, parts.after_attention, on)
        if parts.mlp is not None and "mlp" in on:
            branch = fused.mlp(normed)
        else:
            branch = parts.mlp_module(normed[None])
            branch = branch[0].flatten(0, -2) if isinstance(branch, tuple) else branch.flatten(0, -2)
        heard = self._layers[at]._forward_hooks or (at == len(self._layers) - 1 and self._last is None)
        if heard or self.learning or "norm" not in on:
            return _sum(stream, branch, parts.after_mlp)[None]
        self._left = _Left(stream[None], branch, parts.after_mlp)
        return self._left.stream

    def _taken(self, hidden: Tensor, at: int) -> tuple[Tensor, Tensor | None, Norm | None]:
        """Return the residual stream [N, size], and the branch with its norm that is still to be added to it."""
        left, self._left = self._left, None
        if left is None or at == 0:  # at layer 0, drop what an interrupted forward has left
            return hidden[0], None, None
        if hidden is not left.stream:
            raise UnsupportedAttention("this model changes hidden states between layers, which fused layers cannot see")
        return hidden[0], left.branch, left.norm

    def _norm_after_layers(self, module: nn.Module, x: Tensor) -> Tensor:
        assert self._last is not None
        if self._left is None:
            own: Tensor = type(module).forward(module, x)
            return own
        stream, branch, after = self._taken(x, len(self._layers))
        return _norm(stream, branch, self._last, after, self.on)[0][None]

    def _logits(self, module: nn.Linear, x: Tensor) -> Tensor:
        return self._by(x, module.weight, module.bias)

    # ------------------------------------------------------------------ what a model gets

    def _try(self, at: int, rows: Tensor, given: Mapping[str, Any]) -> None:
        """Turn off fusions whose results over ``rows`` differ from those of the layer itself."""
        layer = self._layers[at]
        own = _own(layer, rows, given)

        def off(other: Tensor) -> float:
            return float((other - own).float().norm() / (own - rows).float().norm().clamp_min(1e-30))

        def noise() -> float:
            step = torch.finfo(rows.dtype).eps * (2 * (torch.arange(rows.shape[-1], device=rows.device) % 2) - 1)
            return _NOISE * off(_own(layer, (rows.float() * (1 + step)).to(rows.dtype), given))

        def fault(on: Iterable[Fusion]) -> str:
            """Return what is wrong with these fusions, or an empty string."""
            self._left = None
            try:
                ours = self._by_kernels(at, rows, given, set(on))
            except Exception as error:  # a compiler or a check of shapes may reject this model with any error
                return f"layer {at}: {reason(error)}"
            found, bound = off(ours), TOLERANCE[rows.dtype]
            right = found <= bound or found <= min(noise(), _CEILING * bound)
            return "" if right else f"layer {at} has a relative error of {found:.2g}"

        if not fault(self.on):
            return
        for fusion in FUSIONS:
            if fusion in self.on and (why := fault([fusion])):
                self.leave(fusion, why)
        if why := fault(self.on):
            for fusion in (*self.on,):
                self.leave(fusion, why)
        if not self.on:
            raise Unlike(f"its layers do not compute what their modules suggest: {self.why_not[FUSIONS[0]]}")

    def report(self) -> dict[str, Any]:
        """Which fusions run, why the others do not, and whether a kernel may start while the previous one ends."""
        from specbench.engine.kernels import dependent  # triton may not be installed

        return {**super().report(), "dependent_launches": dependent.why_not(self._device) or "on"}


class _Left(NamedTuple):
    """Output of a layer: the residual stream [1, N, size], and a branch [N, size] that is still to be added to it."""

    stream: Tensor
    branch: Tensor
    norm: Norm | None


def _last_norm(model: Any, layers: Sequence[nn.Module]) -> Norm | None:
    """Return the norm after the last layer if it is the only one outside the layers, else None."""
    inside = {module for layer in layers for module in layer.modules()}
    outside = [m for m in model.modules() if m not in inside and type(m).__name__.endswith("RMSNorm")]
    return norm_of(outside[0]) if len(outside) == 1 else None


def _own(layer: nn.Module, hidden: Tensor, given: Mapping[str, Any]) -> Tensor:
    """Output of the layer's own forward."""
    output = type(layer).forward(layer, hidden, **given)
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def _norm(
    stream: Tensor, branch: Tensor | None, norm: Norm, after: Norm | None, on: set[Fusion]
) -> tuple[Tensor, Tensor]:
    """Return (norm of the sum, the sum) of ``stream`` and ``branch``."""
    if "norm" in on:
        return add_norm(stream, branch, norm, after)
    total = stream if branch is None else _sum(stream, branch, after)
    return norm.module(total), total


def _sum(stream: Tensor, branch: Tensor, after: Norm | None) -> Tensor:
    return stream + (branch if after is None else after.module(branch))
