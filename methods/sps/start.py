"""Initial weights of a draft model: the target's first layers, random weights in its shape, or another model."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from specbench.common import UsageError
from specbench.methods.sps.drafter import other_words, same_words
from specbench.models import LoadedModel, load

LAYERS, FRESH = "layers", "fresh"


def from_layers(target: LoadedModel, layers: int) -> Any:
    """The target's first layers between its own embedding, last norm and LM head, as copies in float32."""
    draft = _empty(shape(target, layers, None), target)
    held = target.model.state_dict()
    wanted = draft.state_dict()
    known = {name: held[name] for name in wanted if name in held and held[name].shape == wanted[name].shape}
    if missing := sorted(wanted.keys() - known.keys()):
        raise UsageError(
            f"start=layers cannot take the layers of {target.spec.name} apart (it has no {missing[0]}); use start=fresh"
        )
    draft.load_state_dict(known)
    return draft


def from_noise(target: LoadedModel, layers: int, hidden: int | None, seed: int) -> Any:
    """A transformer of the target's family and vocabulary with random weights from ``seed``, in float32."""
    config = shape(target, layers, hidden)
    device = target.model.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        return _empty(config, target)


def from_model(target: LoadedModel, name: str) -> Any:
    """Another model, with weights in float32."""
    found = load(name, dtype="float32", device=str(target.model.device))
    rows = int(target.model.get_output_embeddings().weight.shape[0])
    if not same_words(target.tokenizer, found, rows):
        raise other_words(target.spec.name, found, rows)
    return found.model


def _empty(config: Any, target: LoadedModel) -> Any:
    made = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=target.spec.remote_code)
    return made.to(target.model.device).eval()


def shape(target: LoadedModel, layers: int, hidden: int | None) -> Any:
    """The transformers configuration of a draft model of the target's family with ``layers`` layers."""
    config = copy.deepcopy(target.model.config.get_text_config())
    if layers > config.num_hidden_layers:
        raise UsageError(f"layers={layers} is more than the {config.num_hidden_layers} of {target.spec.name}; lower it")
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    if hasattr(config, "quantization_config"):  # details of the file that the target was read from
        del config.quantization_config
    return config if hidden is None or hidden == config.hidden_size else _narrowed(config, hidden)


def _narrowed(config: Any, hidden: int) -> Any:
    """The configuration with another hidden size: the head size stays, the number of heads changes."""
    heads, groups = config.num_attention_heads, getattr(config, "num_key_value_heads", None)
    if groups is None or not getattr(config, "intermediate_size", None):
        raise UsageError(f"hidden is not supported for the family {config.model_type}; leave it out")
    share = hidden / config.hidden_size
    config.head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    config.num_key_value_heads = max(1, round(groups * share))
    config.num_attention_heads = config.num_key_value_heads * (heads // groups)
    config.intermediate_size = max(8, 8 * round(config.intermediate_size * share / 8))
    config.hidden_size = hidden
    return config
