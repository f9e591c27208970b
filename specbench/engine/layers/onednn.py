"""Run linear layers on a CPU through oneDNN while a model is attached to an engine.

torch computes fp32 linears of few rows with its BLAS, which on many CPUs reads the weights far below memory bandwidth
and has a fast path only for one row. oneDNN's inner product, which torch ships for its compiler, avoids both problems:

- weights are packed once, in the blocks that its kernel needs, and one packing works for every row count;
- layers that read the same input (query, key and value; gate and up) become one product, since a call costs about as
  much as reading a small layer's weights.

Packed weights are a second copy, so a large model keeps torch's layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import MethodType
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import PreTrainedModel

LinearKind = Literal["onednn", "torch"]

# Beyond this the second copy of the weights is not worth the memory.
_LARGEST = 4 << 30
# The row count that weights are packed for. For one row oneDNN keeps the plain layout, which is slower at every row
# count, even for one row; from 16 to 64 rows it chooses the same blocks.
_PACK_ROWS = 16
# Relative error between two orders of the same fp32 sums, at a model's depth.
_TOLERANCE = 1e-3


def linear_kind(model: nn.Module) -> LinearKind:
    """Choose the linears for a model: "onednn" for fp32 weights of moderate size on a CPU, else "torch"."""
    first = next(weight for weight in model.parameters() if weight.is_floating_point())
    fits = (
        first.device.type == "cpu"
        and first.dtype is torch.float32
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and sum(p.nbytes for p in model.parameters()) <= _LARGEST
    )
    return "onednn" if fits else "torch"


# By the address of the first layer's weights: a compiled graph holds tensors but no Python objects, and serves all
# products of one shape, so this is how it identifies a product.
_PRODUCTS: dict[int, _Product] = {}


class Linears:
    """Switch a model's linear layers between torch's kernel and oneDNN's."""

    def __init__(self, model: nn.Module, kind: LinearKind) -> None:
        self._products: list[_Product] = []
        if kind == "torch":
            return
        # A subclass computes something else, and a layer that is already replaced needs no second copy of its weights.
        linears = [
            module
            for module in model.modules()
            if type(module) is nn.Linear and not hasattr(module, "specbench_product")
            if not is_traceable_wrapper_subclass(module.weight)  # a quantised weight has its own product
        ]
        # The address of weights identifies a product, so layers that share weights keep torch's kernel.
        owners = Counter(linear.weight.data_ptr() for linear in linears)
        linears = [linear for linear in linears if owners[linear.weight.data_ptr()] == 1]
        alone = [[linear] for linear in linears]
        if not isinstance(model, PreTrainedModel):
            self._pack(alone)
            return
        expected, groups = _watch(model, linears)
        self._pack(groups)
        if not self._computes(model, expected):
            self._pack(alone)

    def attach(self) -> None:
        """Use the chosen kernel from now on."""
        for product in self._products:
            product.attach()

    def detach(self) -> None:
        """Use torch's kernel again."""
        for product in self._products:
            product.detach()

    def _pack(self, groups: Sequence[Sequence[nn.Linear]]) -> None:
        self._products = [_Product(group) for group in groups]

    def _computes(self, model: PreTrainedModel, expected: Tensor) -> bool:
        """Whether the model's logits stay the same: a model may not work with parts of a merged product's output."""
        self.attach()
        try:
            error = (_logits(model) - expected).norm() / expected.norm()
        except RuntimeError:  # the model makes a view that needs a contiguous output
            return False
        finally:
            self.detach()
        return bool(error <= _TOLERANCE)


class _Product:
    """Layers that read one input, as one product: the first layer computes it, the others return their parts."""

    @torch.no_grad()
    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self._layers = layers
        self.weight = layers[0].weight
        self._sizes = [layer.out_features for layer in layers]
        weight = torch.cat([layer.weight for layer in layers]) if len(layers) > 1 else self.weight.detach()
        self._bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS)
        self._input: Tensor | None = None
        self._parts: Sequence[Tensor] = ()

    def attach(self) -> None:
        """Replace the layers' forwards."""
        _PRODUCTS[self.weight.data_ptr()] = self
        for at, layer in enumerate(self._layers):
            # An instance attribute hides the class's forward. A method, since torch.compile would treat two partials as
            # different code.
            layer.__dict__.update(forward=MethodType(_forward, layer), specbench_product=self, specbench_part=at)

    def detach(self) -> None:
        """Restore the layers' forwards."""
        _PRODUCTS.pop(self.weight.data_ptr(), None)
        for layer in self._layers:
            for name in ("forward", "specbench_product", "specbench_part"):
                layer.__dict__.pop(name, None)

    def part(self, at: int, x: Tensor) -> Tensor:
        """Output of layer ``at``."""
        if len(self._sizes) == 1:
            return self(x)
        if at == 0 or x is not self._input:
            self._input = x  # referenced until the last part is used, so that no new tensor can have its identity
            self._parts = self(x).split(self._sizes, -1)
        part = self._parts[at]
        if at == len(self._sizes) - 1:
            self._input, self._parts = None, ()
        return part

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs of all layers, concatenated."""
        result: Tensor
        if torch.compiler.is_compiling():
            result = torch.ops.specbench.linear(x, self.weight, sum(self._sizes))
        else:
            result = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return result


def _forward(self: nn.Linear, x: Tensor) -> Tensor:
    """Forward of a replaced linear layer."""
    if torch.compiler.is_compiling() and x.numel() == x.shape[-1]:
        # For one row the compiler makes a loop over the plain weights, without a call.
        product = (x.reshape(1, -1) * self.weight).sum(-1)
        return (product if self.bias is None else product + self.bias).view(*x.shape[:-1], -1)
    return self.specbench_product.part(self.specbench_part, x)  # type: ignore[union-attr,operator]


torch.library.define("specbench::linear", "(Tensor x, Tensor weight, int features) -> Tensor")


@torch.library.impl("specbench::linear", "CPU")
def _(x: Tensor, weight: Tensor, features: int) -> Tensor:
    return _PRODUCTS[weight.data_ptr()](x)


@torch.library.register_fake("specbench::linear")
def _(x: Tensor, weight: Tensor, features: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], features)


@torch.inference_mode()
def _logits(model: PreTrainedModel) -> Tensor:
    """Logits of a few rows with the model's own attention."""
    ids = (
        torch.arange(1, 7, dtype=torch.int64, device=model.device).view(2, 3)
        % model.get_input_embeddings().num_embeddings
    )
    logits: Tensor = model(input_ids=ids, use_cache=False).logits
    return logits


def _watch(model: PreTrainedModel, linears: Sequence[nn.Linear]) -> tuple[Tensor, list[list[nn.Linear]]]:
    """Return the logits of a forward, and the linears grouped by consecutive calls on the same tensor."""
    calls: list[tuple[nn.Linear, Tensor]] = []
    hooks = [one.register_forward_pre_hook(lambda module, args: calls.append((module, args[0]))) for one in linears]
    try:
        logits = _logits(model)
    finally:
        for hook in hooks:
            hook.remove()
    groups: list[list[nn.Linear]] = []
    before: Tensor | None = None
    times = Counter(module for module, _ in calls)
    for module, x in calls:
        if times[module] > 1:  # used in several places, which a call does not show
            before = None
        elif x is before and (groups[-1][0].bias is None) == (module.bias is None):
            groups[-1].append(module)
        else:
            groups.append([module])
            before = x
    grouped = {module for group in groups for module in group}
    return logits, groups + [[module] for module in linears if module not in grouped]
