"""The tensors in which a model keeps its weights, also where a quantisation keeps several for one weight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_PACKED = ("qweight", "weight_packed")  # buffers of GPTQ's and AWQ's layers; parameters of compressed-tensors'


def stored(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the plain tensors of every weight, tied ones once.

    A weight of torchao has several tensors inside, one of bitsandbytes has its scales next to it, and the layers of
    GPTQ and AWQ have buffers.
    """
    for name, parameter in model.named_parameters():
        yield from inside(name, parameter)
        for part in ("quant_state", "SCB"):
            yield from _beside(f"{name}.{part}", getattr(parameter, part, None))
    for name, module in model.named_modules():
        if any(hasattr(module, each) for each in _PACKED):
            for part, buffer in module.named_buffers(recurse=False):
                yield from inside(f"{name}.{part}", buffer)


def inside(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the plain tensors of a weight with their names: itself, or what a quantised weight consists of."""
    whole: Any = tensor
    if not is_traceable_wrapper_subclass(tensor):
        yield name, tensor
    else:
        for part in whole.__tensor_flatten__()[0]:
            yield from inside(f"{name}.{part}", getattr(whole, part))


def _beside(name: str, state: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the scales of a weight of bitsandbytes, which may be quantised themselves."""
    if isinstance(state, Tensor):
        yield name, state
    elif state is not None:
        for part in ("absmax", "code", "offset", "state2"):
            yield from _beside(f"{name}.{part}", getattr(state, part, None))


def elements(model: nn.Module) -> dict[str, int]:
    """Return the number of weights that each parameter stores.

    A linear layer's packed weight has fewer elements than weights, or is a buffer; scales and zero points count as 0.
    """
    packed = {name: size for name, module in model.named_modules() if (size := _packed_size(module))}
    found = {name: parameter.numel() for name, parameter in model.named_parameters()}
    for name in found:
        layer, _, part = name.rpartition(".")
        if layer in packed and part != "bias":
            found[name] = 0
    return found | {f"{layer}.weight": size for layer, size in packed.items()}


def _packed_size(module: nn.Module) -> int | None:
    """Number of weights of a linear layer whose weight is packed; None for any other module."""
    inputs, outputs = getattr(module, "in_features", None), getattr(module, "out_features", None)
    if not (isinstance(inputs, int) and isinstance(outputs, int)):
        return None
    weight = getattr(module, "weight", None)
    plain = isinstance(weight, Tensor) and weight.numel() == inputs * outputs
    whole = isinstance(weight, Tensor) or any(hasattr(module, each) for each in _PACKED)
    return inputs * outputs if whole and not plain else None
