"""Make length-dependent rotary embeddings capturable, and keep the frequencies of a draft head exact.

For ``dynamic`` and ``longrope``, transformers reads the largest position from the device before each forward, which a
CUDA graph cannot hold. An engine stays within the positions for which the frequencies are constant
(:func:`specbench.engine.checks.declared.check_declared`), so it does not need the length.
"""

from __future__ import annotations

import inspect
from types import MethodType
from typing import Any

from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding


class HeldRotary:
    """Switch a model's rotary embeddings between transformers' forward and the inner one without the length check."""

    def __init__(self, model: Any) -> None:
        self._modules = [module for module in model.modules() if _asks(getattr(module, "rope_type", None))]

    def attach(self) -> None:
        """Skip the length check from now on."""
        for module in self._modules:
            module.__dict__["forward"] = MethodType(inspect.unwrap(type(module).forward), module)

    def detach(self) -> None:
        """Give the modules their own forward back."""
        for module in self._modules:
            module.__dict__.pop("forward", None)


def _asks(rope_type: Any) -> bool:
    """Whether a rope type, or one of several types by layer kind, depends on the length."""
    types = rope_type.values() if isinstance(rope_type, dict) else [rope_type]
    return any("dynamic" in str(one) or one == "longrope" for one in types)


class ExactRotary(LlamaRotaryEmbedding):
    """Rotary embedding whose frequencies stay in float32 when the model is cast.

    Rounded frequencies would rotate far positions by wrong angles, off by whole radians.
    """

    inv_freq: Tensor

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        exact = self.inv_freq
        super()._apply(fn, recurse)
        self.inv_freq = exact.to(self.inv_freq.device)
        return self
