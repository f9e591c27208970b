"""Initialise a head with the weights of the target's last layers, where names and shapes agree.

A head with the target's sizes is a few decoder layers between the target's embedding and LM head. Initialised with
the target's last layers, it has useful MLPs and a path to the vocabulary from the first step on. The last tapped layer
is just before these layers in the target, so their keys and values for the context fit as well. JetSpec and DFlash
do not describe their initialisation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from specbench.engine import base_model, decoder_layers
from specbench.heads import BlockHead

_FINAL = ("norm", "final_layernorm", "ln_f")  # names in transformers' base models


@torch.no_grad()
def start_from_target(head: BlockHead, model: Any, ids: Tensor) -> int:
    """Copy what fits into a head of random weights; return the number of copied parameters.

    ``ids``: int64 [1, n] a text, which gives the scale of queries and keys if the target does not normalise them.
    """
    layers = decoder_layers(model)[-len(head.layers) :]
    copied = 0
    for own, theirs in zip(head.layers, layers, strict=True):
        copied += _copy(own, theirs)
        attention: Any = own.self_attn
        for name in ("q", "k"):
            if not hasattr(getattr(theirs, "self_attn", None), f"{name}_norm"):
                norm = getattr(attention, f"{name}_norm")
                norm.weight.fill_(_spread(model, theirs, f"self_attn.{name}_proj", ids, attention.head_dim))
    final = next((getattr(base_model(model), name) for name in _FINAL if hasattr(base_model(model), name)), None)
    copied += _copy(head.norm, final) if final is not None else 0
    first = getattr(layers[0], "input_layernorm", None)
    copied += _copy(head.hidden_norm, first) if first is not None else 0
    size = head.config.hidden_size
    head.fc.weight.zero_()
    head.fc.weight[:, -size:] = torch.eye(size)
    return copied


def _copy(own: nn.Module, theirs: nn.Module) -> int:
    """Copy parameters that both have; return the number of copied values."""
    found = dict(theirs.named_parameters())
    fits = [(p, found[n]) for n, p in own.named_parameters() if n in found and found[n].shape == p.shape]
    for parameter, value in fits:
        parameter.copy_(value)
    return sum(value.numel() for _, value in fits)


def _spread(model: Any, layer: nn.Module, name: str, ids: Tensor, size: int) -> float:
    """Root mean square of a projection's output, per head, over a text; 1 without such a projection."""
    projection = dict(layer.named_modules()).get(name)
    if projection is None:
        return 1.0
    seen: list[Tensor] = []
    hook = projection.register_forward_hook(lambda _, __, output: seen.append(output))
    try:
        base_model(model)(input_ids=ids, use_cache=False)
    finally:
        hook.remove()
    return float(seen[0].float().unflatten(-1, (-1, size)).pow(2).mean(-1).sqrt().mean())
