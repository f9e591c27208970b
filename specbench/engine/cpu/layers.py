"""Layers: which models step through our own C++, and the switch between it and transformers' code.

A decoder layer is taken over when its parts are those of a Llama: norms by root mean square, query, key and value,
rotary embedding by halves, attention, and a gated MLP, each of which a model may lack or have twice. That is read off
its modules and parameters, all of which have to be accounted for. What cannot be read off them (a factor on the
residual, say) shows when the engine compares its logits with the model's own.
"""

from __future__ import annotations

import ctypes
import inspect
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from specbench.engine.attention.backends import ReferenceAttention
from specbench.engine.attention.interface import Backend, Calls
from specbench.engine.cache import StaticCache
from specbench.engine.cpu import library
from specbench.engine.step import decoder_layers


class Unlike(Exception):
    """A layer is not of the kind; says in what."""


class OwnLayers:
    """Switches a model's decoder layers and LM head between transformers' code and ours.

    Args:
        model: a transformers causal LM on a CPU.
        cache: the engine's.
        calls: what each layer's attention is.

    Raises:
        Unlike: this model's layers are not of the kind.
        EnvironmentRefused: the code cannot be had.
    """

    def __init__(self, model: Any, cache: StaticCache, calls: Calls) -> None:
        if model.dtype not in (torch.float32, torch.bfloat16):
            raise Unlike(f"{model.dtype} is not computed in".replace("torch.", ""))
        self._kept: list[Tensor] = []  # what the structures point to
        self._layers = decoder_layers(model)
        found = [self._layer(layer, cache, calls) for layer in self._layers]
        head = model.get_output_embeddings()
        product, norms = self._linear(head, "LM head"), self._other_norms(model)
        self._structures = (library.Layer * len(found))(*found)
        self._work = library.Work(library.open_library())
        self._capacity, self._slots = cache.capacity, len(cache.stored(next(iter(cache.shapes)))[0])
        work = self._work
        self._forwards: list[tuple[nn.Module, Any]] = [
            *((layer, _Layer(self, at)) for at, layer in enumerate(self._layers)),
            *((module, _Norm(work, norm)) for module, norm in norms),
            (head, _Head(work, product)),
        ]
        self._aimed: Any = None
        # Layers that get the same rotary embedding are run together; which do shows in the first forward.
        self._ropes: list[Any] = []
        self._ends: list[int] = []
        self._ready: dict[int, Tensor] = {}  # outputs of layers that are still to be asked for

    def attach(self) -> None:
        """Uses our code from now on."""
        for module, forward in self._forwards:
            module.__dict__["forward"] = MethodType(forward, module)

    def detach(self) -> None:
        """Gives the modules their own forwards back."""
        for module, _ in self._forwards:
            module.__dict__.pop("forward", None)

    def run(self, at: int, hidden: Tensor, step: Any, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """Output of layer ``at``."""
        if step is not self._aimed:
            self._aim(step)
        if at not in self._ready:
            end = self._ends[at] if self._ends else at + 1
            # A layer that nobody listens to hands on what the last one put out: the next layer is done already.
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
        """Notes the rotary embedding of a layer in the first forward."""
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
            layout.slot.int(), layout.first.int(), layout.count.int(), see.lengths.int(), see.depth.int(), see.rows,
        )  # fmt: skip
        self._work.aim(tensors, self._slots, self._capacity)
        self._aimed, self._ready = step, {}

    # ------------------------------------------------------------------ reading a layer

    def _layer(self, layer: nn.Module, cache: StaticCache, calls: Calls) -> Any:
        parts = _Parts(layer)
        attention, mlp = parts.child("self_attn"), parts.child("mlp")
        index = getattr(attention, "layer_idx", None)
        if index not in cache.shapes or index not in calls.heads:
            raise Unlike("its layers have no number")
        kv_heads, size, value_size = cache.shapes[index]
        heads = calls.heads[index]
        if "position_ids" in inspect.signature(type(attention).forward).parameters:
            # Queries scaled by their place in the text, say: nothing that a comparison of short texts would show.
            raise Unlike("its attention goes by positions beside the rotary embedding")
        found = library.Layer()
        found.before_attention = self._norm(parts.take("input_layernorm"))
        sandwich = parts.has("pre_feedforward_layernorm")
        after = parts.take("post_attention_layernorm")
        if sandwich:
            found.after_attention = self._norm(after)
            found.before_mlp = self._norm(parts.take("pre_feedforward_layernorm"))
            found.after_mlp = self._norm(parts.take("post_feedforward_layernorm"))
        else:
            found.before_mlp = self._norm(after)
        if parts.has("self_attn.qkv_proj"):
            found.inputs[0] = self._linear(parts.take("self_attn.qkv_proj"), "qkv_proj")
            if found.inputs[0].out != heads * size + kv_heads * (size + value_size):
                raise Unlike("its qkv_proj has another form")
        else:
            for at, name in enumerate(("q_proj", "k_proj", "v_proj")):
                found.inputs[at] = self._linear(parts.take(f"self_attn.{name}"), name)
        for name, field in (("q_norm", "of_query"), ("k_norm", "of_key")):
            if parts.has(f"self_attn.{name}"):
                norm = parts.take(f"self_attn.{name}")
                if sum(weight.numel() for weight in norm.parameters()) != size:
                    raise Unlike(f"its {name} is not of single heads")
                setattr(found, field, self._norm(norm))
        found.output = self._linear(parts.take("self_attn.o_proj"), "o_proj")
        if parts.has("mlp.gate_up_proj"):
            found.gate = self._linear(parts.take("mlp.gate_up_proj"), "gate_up_proj")
        else:
            found.gate = self._linear(parts.take("mlp.gate_proj"), "gate_proj")
            found.up = self._linear(parts.take("mlp.up_proj"), "up_proj")
        found.down = self._linear(parts.take("mlp.down_proj"), "down_proj")
        parts.all_taken()
        if max(size, value_size) > library.LARGEST_HEAD:
            raise Unlike(f"its heads of {max(size, value_size)} are larger than {library.LARGEST_HEAD}")
        name = _activation(mlp)
        if name not in library.ACTIVATIONS:
            raise Unlike(f"its activation is {name}")
        window = calls.windows[index]
        scale = calls.scales[index]
        found.heads = library.Heads(
            heads, kv_heads, size, value_size, window or 0, size**-0.5 if scale is None else scale
        )
        found.hidden, found.inner = found.output.out, found.down.in_
        found.activation, found.type = library.ACTIVATIONS[name], library.TYPES[cache.stored(index)[0].dtype]
        keys, values = cache.stored(index)
        self._kept += [keys, values]
        found.keys, found.values = keys.data_ptr(), values.data_ptr()
        return found

    def _norm(self, module: nn.Module) -> library.Norm:
        weight = getattr(module, "weight", None)
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if not isinstance(weight, Tensor) or not isinstance(eps, float) or len(list(module.parameters())) != 1:
            raise Unlike(f"{type(module).__name__} is not a norm by root mean square")
        # Some norms multiply by 1 + weight; which ones is asked of the module itself.
        given = torch.linspace(-1, 2, weight.numel(), dtype=weight.dtype)
        with torch.inference_mode():
            own = module(given).float()
        wide = given.float()
        normed = wide * torch.rsqrt(wide.square().mean() + eps)
        for factor in (weight.detach().float(), 1 + weight.detach().float()):
            if torch.allclose(own, normed * factor, rtol=2e-2, atol=2e-2):
                factor = factor.clone()
                self._kept.append(factor)
                return library.Norm(factor.data_ptr(), eps)
        raise Unlike(f"{type(module).__name__} is not a norm by root mean square")

    def _other_norms(self, model: nn.Module) -> list[tuple[nn.Module, library.Norm]]:
        """Norms outside the layers, as that before the LM head: torch's sums depend on how many rows there are."""
        inside = {module for layer in self._layers for module in layer.modules()}
        found = []
        for module in model.modules():
            if module not in inside and not list(module.children()) and type(module).__name__.endswith("RMSNorm"):
                found.append((module, self._norm(module)))
        return found

    def _linear(self, module: nn.Module, name: str) -> library.Linear:
        if type(module) is not nn.Linear:
            raise Unlike(f"its {name} is {type(module).__name__} and not a linear layer")
        weight = module.weight.detach()
        if not weight.is_contiguous():
            raise Unlike(f"the weights of its {name} do not lie row by row")
        bias = None if module.bias is None else module.bias.detach().float().contiguous()
        # Of a model that was loaded in int8: bytes and scales, the product of which the weights are.
        weight, scale = getattr(module, "eight_bits", (weight, None))
        self._kept += [each for each in (weight, bias, scale) if each is not None]
        bias_at, scale_at = (None if each is None else each.data_ptr() for each in (bias, scale))
        out, size = weight.shape
        return library.Linear(weight.data_ptr(), bias_at, scale_at, out, size, library.TYPES[weight.dtype])


class _Parts:
    """The modules of a layer, each of which is taken once, so that none with parameters is overlooked."""

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

    def all_taken(self) -> None:
        if self._left:
            raise Unlike(f"its layers have a {min(self._left)}")


def _activation(mlp: nn.Module) -> str:
    """Name of the activation of a gated MLP, as configurations call it."""
    from transformers.activations import ACT2FN

    found = getattr(mlp, "act_fn", getattr(mlp, "activation_fn", None))
    for name in library.ACTIVATIONS:
        if type(found) is type(ACT2FN[name]):
            return name
    return type(found).__name__


class _Layer:
    """A decoder layer's forward: ours in a step of the engine, else the layer's own."""

    def __init__(self, own: OwnLayers, at: int) -> None:
        self._own, self._at = own, at

    def __call__(
        self,
        layer: nn.Module,
        hidden_states: Tensor,
        *args: Any,
        step: Backend | None = None,
        calls: Calls | None = None,
        position_embeddings: Any = None,
        **kw: Any,
    ) -> Any:
        # transformers' own loop, a check that listens to the layers' calls, or an attention that is not a step's
        if not isinstance(step, ReferenceAttention) or calls is not None or position_embeddings is None:
            kw.update(step=step, calls=calls, position_embeddings=position_embeddings)
            return type(layer).forward(layer, hidden_states, *args, **kw)
        return self._own.run(self._at, hidden_states, step, position_embeddings)


class _Norm:
    """A norm's forward."""

    def __init__(self, work: library.Work, norm: library.Norm) -> None:
        self._work, self._norm = work, norm

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        return self._work.norm(self._norm, x)


class _Head:
    """An LM head's forward."""

    def __init__(self, work: library.Work, product: library.Linear) -> None:
        self._work, self._product = work, product

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        return self._work.linear(self._product, x)
