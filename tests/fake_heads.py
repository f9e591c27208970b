"""Draft heads on tensors without memory: what their rounds would launch on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fake_gpu import on_meta
from models_tiny import SUPPORTED
from targets import alone

from specbench.engine.nodes import META
from specbench.methods.eagle3.config import HeadConfig as EagleConfig
from specbench.methods.eagle3.drafting import Drafts
from specbench.methods.eagle3.head import DraftHead as EagleHead
from specbench.methods.jetspec.config import HeadConfig
from specbench.methods.jetspec.drafting import BlockPass
from specbench.methods.jetspec.head import DraftHead

#: (the target's configuration, what a head is told of it) -> the head's drafting.
Make = Callable[[Any, Any], Any]


def jetspec(layers: int, *, causal: bool = True) -> Make:
    def make(config: Any, target: Any) -> BlockPass:
        shape = HeadConfig.for_target(config, mask_token_id=299, block_size=16, layers=layers, causal=causal)
        return BlockPass(DraftHead.random(shape, device=META, dtype=torch.bfloat16), target, depth=15, width=7)

    return make


def eagle(depth: int) -> Make:
    def make(config: Any, target: Any) -> Drafts:
        head = EagleHead.random(EagleConfig.for_target(config), device=META, dtype=torch.bfloat16)
        return Drafts(head, target, depth=depth, width=4)

    return make


def passes_of(make: Make, slots: int = 1, capture: Callable[..., Any] = lambda work: work) -> Any:
    """The head passes of a drafting; within :func:`specbench.engine.nodes.launches`."""
    model = on_meta(SUPPORTED["qwen3"])
    return make(model.config, alone(model, slots=slots, capacity=64, attention="triton", capture=capture))._passes
