"""Initialise a head with the corresponding parts of the target.

The head maps features of the target to its vocabulary, as the target's last layers do. So it starts with the target's
LM head (the rows that can be drafted) and final norm. Its layer starts as the target's last layer: the features go
through that layer's queries, keys and values, and the embedding is ignored at first. A wider MLP starts as the
concatenated MLPs of several last layers. EAGLE-3 and SpecForge start with random weights and train on much more text.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from specbench.engine import base_model, decoder_layers
from specbench.methods.eagle3.head import DraftHead

_FINAL = ("norm", "final_layernorm", "ln_f")  # names in transformers' base models


@torch.no_grad()
def start_from_target(head: DraftHead, model: Any) -> int:
    """Copy what fits into a head of random weights; return the number of copied values."""
    target = decoder_layers(model)
    layers: list[Any] = [*head.layers]
    copied = 0
    for own, theirs in zip(layers, target[-len(layers) :], strict=True):
        copied += _attention(own, theirs, head.config.hidden_size)
        copied += _norms(own, theirs)
    copied += _mlp(layers[-1], target)
    final = next((getattr(base_model(model), name) for name in _FINAL if hasattr(base_model(model), name)), None)
    copied += _copy(head.norm, final)
    scorer = model.get_output_embeddings()
    ids = head.draft_ids
    if scorer.weight.shape[1] == head.config.hidden_size:
        rows = scorer.weight if ids is None else scorer.weight[ids]
        head.lm_head.weight.copy_(rows)
        copied += rows.numel()
    width = head.config.target_hidden_size
    if width == head.config.hidden_size:
        head.fc.weight.zero_()
        head.fc.weight[:, -width:] = torch.eye(width)
    return copied


def _attention(own: Any, theirs: Any, hidden: int) -> int:
    """Copy projections; those of the first layer read the features in the second half of their input."""
    copied = 0
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        mine = getattr(own.self_attn, name).weight
        given = getattr(getattr(theirs, "self_attn", None), name, None)
        if given is None:
            continue
        part = mine[:, hidden:] if mine.shape[1] == 2 * hidden and name != "o_proj" else mine
        if given.weight.shape == part.shape:
            part.copy_(given.weight)
            copied += part.numel()
    return copied


def _norms(own: Any, theirs: Any) -> int:
    copied = sum(_copy(getattr(own, name), getattr(theirs, name, None)) for name in _NORMS)
    if hasattr(own, "hidden_norm"):
        copied += _copy(own.hidden_norm, getattr(theirs, "input_layernorm", None))
    return copied


_NORMS = ("input_layernorm", "post_attention_layernorm")


def _mlp(own: Any, target: list[nn.Module]) -> int:
    """Concatenate as many of the target's last MLPs as fit: their outputs add up, all after the same norm."""
    copied = at = 0
    for layer in reversed(target):
        given: Any = getattr(layer, "mlp", None)
        if not all(hasattr(given, name) for name in ("gate_proj", "up_proj", "down_proj")):
            break
        size = given.gate_proj.weight.shape[0]
        if at + size > own.mlp.gate_proj.weight.shape[0]:
            break
        for name in ("gate_proj", "up_proj"):
            getattr(own.mlp, name).weight[at : at + size].copy_(getattr(given, name).weight)
        own.mlp.down_proj.weight[:, at : at + size].copy_(given.down_proj.weight)
        copied, at = copied + 3 * given.gate_proj.weight.numel(), at + size
    return copied


def _copy(own: nn.Module, theirs: Any) -> int:
    """Copy a norm's weight if both norms have the same shape; return the number of copied values."""
    weight, given = getattr(own, "weight", None), getattr(theirs, "weight", None)
    if weight is None or given is None or weight.shape != given.shape:
        return 0
    weight.copy_(given)
    return int(given.numel())
