"""Find the parts of a decoder layer from its modules, for layers that our own code runs.

Supported layers are like Llama's: RMSNorm, query, key and value, rotary embedding by halves, attention, and a gated
MLP; some norms are optional. Every parameter of a layer must belong to a known part. Features that modules do not show
(e.g. a factor on the residual) are found when a forward is compared with the model's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from specbench.engine.attention.interface import Calls, LayerAttention
from specbench.engine.cache import LayerShape

ACTIVATIONS = ("silu", "swish", "gelu_pytorch_tanh")


class Unlike(Exception):
    """Raised if a layer is not of the supported kind; the message names the difference."""


@dataclass(frozen=True)
class Norm:
    """An RMSNorm; ``offset`` is 1 if it multiplies by 1 + weight, else 0."""

    module: nn.Module
    eps: float
    offset: int

    @property
    def weight(self) -> Tensor:
        """[size], read from the module each time."""
        weight = self.module.weight
        assert isinstance(weight, Tensor)
        return weight.detach()


@dataclass(frozen=True)
class Heads:
    """Sizes and parameters of a layer's attention."""

    heads: int
    kv_heads: int
    size: int
    value_size: int
    how: LayerAttention


@dataclass(frozen=True)
class Attention:
    """Attention from the query, key and value products to the output product.

    ``index``: the layer's index in the cache; ``inputs``: the products of query, key and value, or a single one if the
    model merges them; ``of_query``, ``of_key``: norms of each head.
    """

    module: nn.Module
    index: int
    inputs: tuple[nn.Linear, ...]
    of_query: Norm | None
    of_key: Norm | None
    output: nn.Linear
    heads: Heads


@dataclass(frozen=True)
class Gated:
    """A gated MLP: down(act(gate) * up)."""

    inputs: tuple[nn.Linear, ...]
    down: nn.Linear
    activation: str


@dataclass(frozen=True)
class Parts:
    """Parts of a decoder layer.

    ``before_attention`` is None in draft heads whose first layer has no such norm; ``mlp`` is None if it is not a gated
    MLP, e.g. with experts.
    """

    before_attention: Norm | None
    after_attention: Norm | None
    before_mlp: Norm
    after_mlp: Norm | None
    attention: Attention
    mlp: Gated | None
    mlp_module: nn.Module


def parts_of(
    layer: nn.Module,
    shapes: dict[int, LayerShape],
    calls: Calls,
    *,
    any_mlp: bool = False,
    apart: Sequence[str] = (),
) -> Parts:
    """Find the parts of a layer; ``any_mlp``: allow any MLP module; ``apart``: modules that the caller runs."""
    modules = _Modules(layer)
    attention, mlp = modules.child("self_attn"), modules.child("mlp")
    bare = "input_layernorm" in apart and not modules.has("input_layernorm")
    before = None if bare else norm_of(modules.take("input_layernorm"))
    after_attention = after_mlp = None
    second = modules.take("post_attention_layernorm")
    if modules.has("pre_feedforward_layernorm"):  # norms on both sides
        after_attention, before_mlp = norm_of(second), norm_of(modules.take("pre_feedforward_layernorm"))
        after_mlp = norm_of(modules.take("post_feedforward_layernorm"))
    else:
        before_mlp = norm_of(second)
    found = _attention(attention, modules, shapes, calls)
    gated: Gated | None
    try:
        gated = _gated(mlp, modules)
    except Unlike:
        if not any_mlp:
            raise
        gated = None
        modules.take("mlp")
    for name in apart:
        if modules.has(name):
            modules.take(name)
    modules.all_taken()
    return Parts(before, after_attention, before_mlp, after_mlp, found, gated, mlp)


def _attention(attention: nn.Module, modules: _Modules, shapes: dict[int, LayerShape], calls: Calls) -> Attention:
    index = getattr(attention, "layer_idx", None)
    if not isinstance(index, int) or index not in shapes or index not in calls.heads:
        raise Unlike("its layers have no layer_idx")
    kv_heads, size, value_size = shapes[index]
    heads = calls.heads[index]
    if "position_ids" in inspect.signature(type(attention).forward).parameters:
        # For example queries scaled by their position, which a comparison on short texts would not show.
        raise Unlike("its attention uses positions other than in the rotary embedding")
    if modules.has("self_attn.qkv_proj"):
        inputs = [modules.linear("self_attn.qkv_proj")]
        if inputs[0].out_features != heads * size + kv_heads * (size + value_size):
            raise Unlike("its qkv_proj has an unexpected shape")
    else:
        inputs = [modules.linear(f"self_attn.{name}") for name in ("q_proj", "k_proj", "v_proj")]
        if [each.out_features for each in inputs] != [heads * size, kv_heads * size, kv_heads * value_size]:
            raise Unlike("its query, key or value product has an unexpected shape")
    norms: list[Norm | None] = []
    for name in ("q_norm", "k_norm"):
        norms.append(norm_of(modules.take(f"self_attn.{name}")) if modules.has(f"self_attn.{name}") else None)
        if norms[-1] and norms[-1].weight.numel() != size:
            raise Unlike(f"its {name} does not normalize single heads")
    output = modules.linear("self_attn.o_proj")
    sizes = Heads(heads, kv_heads, size, value_size, calls.layers[index])
    return Attention(attention, index, tuple(inputs), norms[0], norms[1], output, sizes)


def _gated(mlp: nn.Module, modules: _Modules) -> Gated:
    if modules.has("mlp.gate_up_proj"):
        inputs = [modules.linear("mlp.gate_up_proj")]
    else:
        inputs = [modules.linear("mlp.gate_proj"), modules.linear("mlp.up_proj")]
    return Gated(tuple(inputs), modules.linear("mlp.down_proj"), _activation(mlp))


def norm_of(module: nn.Module) -> Norm:
    """Return a module as a :class:`Norm`; raise :class:`Unlike` if it is not an RMSNorm."""
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not isinstance(weight, Tensor) or not isinstance(eps, float) or len(list(module.parameters())) != 1:
        raise Unlike(f"{type(module).__name__} is not an RMSNorm")
    if weight.is_meta:  # cannot be computed, so any offset will do
        return Norm(module, eps, 0)
    # Some norms multiply by 1 + weight: find out by running the module.
    given = torch.linspace(-1, 2, weight.numel(), dtype=weight.dtype, device=weight.device)
    with torch.inference_mode():
        own = module(given).float()
    wide = given.float()
    normed = wide * torch.rsqrt(wide.square().mean() + eps)
    for offset in (0, 1):
        if torch.allclose(own, normed * (offset + weight.detach().float()), rtol=2e-2, atol=2e-2):
            return Norm(module, eps, offset)
    raise Unlike(f"{type(module).__name__} is not an RMSNorm")


def plain_linear(module: nn.Module, name: str) -> nn.Linear:
    """Return a module if it is a linear layer with contiguous weights, else raise :class:`Unlike`."""
    if type(module) is not nn.Linear:
        raise Unlike(f"its {name} is {type(module).__name__} and not a linear layer")
    if is_traceable_wrapper_subclass(module.weight):
        raise Unlike(f"the weights of its {name} are quantised")
    if not module.weight.is_contiguous():
        raise Unlike(f"the weights of its {name} are not contiguous")
    return module


def _activation(mlp: nn.Module) -> str:
    """Name of a gated MLP's activation, as in configurations."""
    from transformers.activations import ACT2FN

    found = getattr(mlp, "act_fn", getattr(mlp, "activation_fn", None))
    for name in ACTIVATIONS:
        if type(found) is type(ACT2FN[name]):
            return name
    raise Unlike(f"its activation is {type(found).__name__}")


class _Modules:
    """Modules of a layer, each of which is taken once, to make sure that no parameter is ignored."""

    def __init__(self, layer: nn.Module) -> None:
        self._modules = dict(layer.named_modules())
        self._left = {name for name, _ in layer.named_parameters()}

    def has(self, name: str) -> bool:
        return self._modules.get(name) is not None

    def child(self, name: str) -> nn.Module:
        if not self.has(name):
            raise Unlike(f"its layers have no {name}")
        return self._modules[name]

    def take(self, name: str) -> nn.Module:
        module = self.child(name)
        self._left -= {f"{name}.{parameter}" for parameter, _ in module.named_parameters()}
        return module

    def linear(self, name: str) -> nn.Linear:
        return plain_linear(self.take(name), name.rpartition(".")[2])

    def all_taken(self) -> None:
        if self._left:
            raise Unlike(f"its layers have a {min(self._left)}")
