"""Linear layers on a CPU through oneDNN, for as long as the engine has the model.

torch sends fp32 linears of few rows to its BLAS, which on many CPUs reads the weights far below memory bandwidth and
loses its fast path above one row. oneDNN's inner product, which torch ships for its compiler, has neither fault. It
needs the weights in its own container, so they exist twice while it is in use; a large model keeps torch's.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

Kind = Literal["onednn", "torch"]

# Beyond this the second copy of the weights is not worth the memory.
_LARGEST = 4 << 30


def kind_for(model: Any) -> Kind:
    """Which linears the engine uses for a model: "onednn" for fp32 weights of moderate size on a CPU, else "torch"."""
    fits = (
        model.device.type == "cpu"
        and model.dtype is torch.float32
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and sum(p.nbytes for p in model.parameters()) <= _LARGEST
    )
    return "onednn" if fits else "torch"


class Linears:
    """Switches a model's linear layers between torch's kernel and oneDNN's.

    Args:
        model: a transformers causal LM.
        kind: from :func:`kind_for`.
    """

    def __init__(self, model: nn.Module, kind: Kind) -> None:
        self._forwards: list[tuple[nn.Linear, Any]] = []
        if kind == "onednn":
            with torch.no_grad():
                for module in model.modules():
                    if type(module) is nn.Linear:  # a subclass computes something else
                        packed = module.weight.to_mkldnn()
                        self._forwards.append((module, partial(_inner_product, packed, module.bias)))

    def attach(self) -> None:
        """Uses the chosen kernel from now on."""
        for module, forward in self._forwards:
            module.__dict__["forward"] = forward  # found before the class's own

    def detach(self) -> None:
        """Gives the layers torch's kernel back."""
        for module, _ in self._forwards:
            module.__dict__.pop("forward", None)


def _inner_product(packed: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return result
