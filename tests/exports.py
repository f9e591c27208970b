"""Models that are exported: tiny ones whose biases and norms are random too, so that one in a wrong place is seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import models_tiny
import torch

from specbench.models.adapters import fingerprint
from specbench.models.loader import LoadedModel, load

VOCAB = 97
_SIZES = {"vocab_size": VOCAB, "rope_parameters": {"rope_theta": 77.0}, "tie_word_embeddings": False}

#: What GGUF is written of: fewer KV heads than heads in all of them.
FAMILIES: dict[str, models_tiny._Recipe] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", _SIZES),
    "llama, tied": ("LlamaConfig", "LlamaForCausalLM", {**_SIZES, "tie_word_embeddings": True}),
    "llama with biases": ("LlamaConfig", "LlamaForCausalLM", {**_SIZES, "attention_bias": True, "mlp_bias": True}),
    "llama with wide heads": ("LlamaConfig", "LlamaForCausalLM", {**_SIZES, "head_dim": 12}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _SIZES),
    "qwen2, tied": ("Qwen2Config", "Qwen2ForCausalLM", {**_SIZES, "tie_word_embeddings": True}),
    "qwen3": (
        "Qwen3Config",
        "Qwen3ForCausalLM",
        {**_SIZES, "head_dim": 128},
    ),  # transformers reads no other from a file
}


def tiny(recipe: models_tiny._Recipe, dtype: torch.dtype = torch.float32, name: str = "tiny") -> LoadedModel:
    """A random model as it is loaded, without a tokenizer."""
    model = models_tiny.build(recipe)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += torch.randn(parameter.shape, generator=generator) / 4
    model.requires_grad_(False)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return loaded(model, dtype, name)


def loaded(model: Any, dtype: torch.dtype = torch.float32, name: str = "tiny") -> LoadedModel:
    """A model of transformers as it is loaded, without a tokenizer."""
    dummy = load("config:tiny", device="cpu")
    said = {"name": name, "dtype": str(dtype).removeprefix("torch."), "fingerprint": fingerprint(model)}
    return replace(dummy, model=model, stop_ids=frozenset(), spec=dummy.spec.model_copy(update=said))
