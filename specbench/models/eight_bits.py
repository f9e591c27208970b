"""Quantise the weights of linear layers to 8 bits, with a scale per row.

The result is a different model with its own fingerprint and baseline. Its float32 weights are replaced by the rounded
values, so that all code computes the same model; kernels that read the int8 values find them next to the weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from specbench.common import UsageError

_LARGEST = 127


def round_weights(model: Any) -> None:
    """Round the weights of a float32 model's linear layers in place, to the nearest of 255 multiples of a row's scale.

    Tied embeddings are rounded with their linear layer. Each layer gets an attribute ``eight_bits``: its weights as
    int8 [out, in] and their scales as float32 [out].

    Raises:
        UsageError: the model has matrices in other modules, such as experts in one tensor.
    """
    for name, module in model.named_modules():
        if not isinstance(module, (nn.Linear, nn.Embedding)):
            for own, weight in module.named_parameters(name, recurse=False):
                if weight.dim() > 1:
                    raise UsageError(
                        f"cannot use --dtype int8: {own} is a matrix outside of linear layers; use --dtype bfloat16 or "
                        "float32"
                    )
    for module in model.modules():
        if type(module) is nn.Linear:
            weight = module.weight.data
            scale = weight.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / _LARGEST
            rounded = (weight / scale[:, None]).round_().clamp_(-_LARGEST, _LARGEST)
            module.__dict__["eight_bits"] = rounded.to(torch.int8), scale
            weight.copy_(rounded * scale[:, None])


def bytes_of(model: Any) -> int:
    """Return the bytes of a model's weights that a decoding step reads."""
    short: dict[int, tuple[Tensor, Tensor]] = {
        module.weight.data_ptr(): module.eight_bits for module in model.modules() if hasattr(module, "eight_bits")
    }
    total = 0
    for parameter in model.parameters():
        held = short.get(parameter.data_ptr())
        total += parameter.nbytes if held is None else sum(part.nbytes for part in held)
    return total
