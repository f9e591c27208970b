"""A model whose linear layers have weights of 8 bits, with a scale per row.

Rounding makes another model with its own fingerprint and baseline. Its float32 weights become the rounded ones, so all
code computes the same model; the bytes go along for code that reads those instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from specbench.common import UsageError

_LARGEST = 127


def round_weights(model: Any) -> None:
    """Rounds the weights of a float32 model's linear layers in place, to the nearest of 255 multiples of a row's scale.

    A layer whose weights are the embedding's too takes the embedding with it.

    Each layer has from then on an attribute ``eight_bits``: its weights as int8 [out, in], their scales float32 [out].

    Raises:
        UsageError: matrices of it are in modules of another kind, such as experts in one tensor.
    """
    for name, module in model.named_modules():
        if not isinstance(module, (nn.Linear, nn.Embedding)):
            for own, weight in module.named_parameters(name, recurse=False):
                if weight.dim() > 1:
                    raise UsageError(
                        f"int8 is of models whose matrices are in linear layers, and {own} is not; "
                        "use --dtype bfloat16 or float32"
                    )
    for module in model.modules():
        if type(module) is nn.Linear:
            weight = module.weight.data
            scale = weight.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / _LARGEST
            rounded = (weight / scale[:, None]).round_().clamp_(-_LARGEST, _LARGEST)
            module.__dict__["eight_bits"] = rounded.to(torch.int8), scale
            weight.copy_(rounded * scale[:, None])


def bytes_of(model: Any) -> int:
    """Bytes of a model's weights as a step reads them."""
    short: dict[int, tuple[Tensor, Tensor]] = {
        module.weight.data_ptr(): module.eight_bits for module in model.modules() if hasattr(module, "eight_bits")
    }
    total = 0
    for parameter in model.parameters():
        held = short.get(parameter.data_ptr())
        total += parameter.nbytes if held is None else sum(part.nbytes for part in held)
    return total
