"""Rotary embeddings: those whose frequencies depend on the length, held still; and a small model's, kept exact.

transformers asks the device how far a forward's positions reach before each of them (``dynamic`` and ``longrope``),
which no CUDA graph can hold. An engine reaches no further than the positions up to which the frequencies are those that
a model was trained with (:func:`specbench.engine.checks.declared.check_declared`), so it need not ask.
"""

from __future__ import annotations

import inspect
from types import MethodType
from typing import Any

from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding


class HeldRotary:
    """Switches a model's rotary embeddings between transformers' forward and the one inside of it."""

    def __init__(self, model: Any) -> None:
        self._modules = [module for module in model.modules() if _asks(getattr(module, "rope_type", None))]

    def attach(self) -> None:
        """Asks for no length from now on."""
        for module in self._modules:
            module.__dict__["forward"] = MethodType(inspect.unwrap(type(module).forward), module)

    def detach(self) -> None:
        """Gives the modules their own forward back."""
        for module in self._modules:
            module.__dict__.pop("forward", None)


def _asks(rope_type: Any) -> bool:
    """Whether a type of rope, or one of several by kind of layer, depends on the length."""
    types = rope_type.values() if isinstance(rope_type, dict) else [rope_type]
    return any("dynamic" in str(one) or one == "longrope" for one in types)


class ExactRotary(LlamaRotaryEmbedding):
    """Frequencies that stay in float32 when their model is cast: rounded ones turn far positions by whole radians."""

    inv_freq: Tensor

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        exact = self.inv_freq
        super()._apply(fn, recurse)
        self.inv_freq = exact.to(self.inv_freq.device)
        return self
