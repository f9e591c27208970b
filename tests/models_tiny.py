"""Tiny random causal LMs of many families, and an engine that gives the model back at the end.

Weights are wide (initializer_range 0.3) so that greedy output varies and does not settle on one token.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import transformers

from specbench.decoding.tree import TokenTree
from specbench.engine.engine import Engine

transformers.logging.set_verbosity_error()
logging.getLogger("transformers").setLevel(logging.ERROR)

WINDOW = 8  # of the families that slide; shorter than every test's run

_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
_MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
# The last two layers store nothing and read what the last layers of their kinds before them have stored.
_SHARING: dict[str, Any] = {
    "sliding_window": WINDOW, "num_hidden_layers": 4, "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 8, "tie_word_embeddings": False,
}  # fmt: skip
_SLIDING_AND_FULL = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]

#: Names of a configuration and of a model of transformers, which imports a family when it is asked for, and sizes.
_Recipe = tuple[str, str, dict[str, Any]]

# What the engine must run. Sliding windows are shorter than the runs; every family has fewer KV heads than heads.
SUPPORTED: dict[str, _Recipe] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {"vocab_size": 97}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {"vocab_size": 131}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"vocab_size": 300, "num_hidden_layers": 3}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {"vocab_size": 101, "sliding_window": WINDOW}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {"vocab_size": 113, "original_max_position_embeddings": 256}),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {"vocab_size": 200, "sliding_window": WINDOW, "num_hidden_layers": 4, "layer_types": _SLIDING_AND_FULL}
        | {"query_pre_attn_scalar": 8, "tie_word_embeddings": False},
    ),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {"vocab_size": 149, **_MOE}),
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {"vocab_size": 103, "n_embd": 32, "n_layer": 2, "n_head": 4, "tie_word_embeddings": False},
    ),
}

# Likewise, with layers that read the keys and values of others.
SHARING: dict[str, _Recipe] = {
    "gemma3n": (
        "Gemma3nTextConfig",
        "Gemma3nForCausalLM",
        {"vocab_size": 97, "vocab_size_per_layer_input": 97, **_SHARING, "laurel_rank": 4, "altup_num_inputs": 2}
        | {"intermediate_size": [48] * 4, "activation_sparsity_pattern": [0.0] * 4},
    ),
    "gemma4": (
        "Gemma4TextConfig",
        "Gemma4ForCausalLM",
        {"vocab_size": 97, "vocab_size_per_layer_input": 97, **_SHARING},
    ),
}

# What it must refuse, with the words that name the feature.
REFUSED: dict[str, tuple[_Recipe, str]] = {
    "soft-capping": (("Gemma2Config", "Gemma2ForCausalLM", {"vocab_size": 97}), "softcap"),
    "sinks": (("GptOssConfig", "GptOssForCausalLM", {"vocab_size": 97, **_MOE}), "s_aux"),
    "old-style": (
        ("BloomConfig", "BloomForCausalLM", {"vocab_size": 97, "n_layer": 2, "n_head": 4}),
        "AttentionInterface",
    ),
    "chunked": (
        ("Llama4TextConfig", "Llama4ForCausalLM", {"vocab_size": 97, "intermediate_size_mlp": 48, **_MOE}),
        "chunked_attention",
    ),
    "scale by the cache's length": (
        (
            "Llama4TextConfig",
            "Llama4ForCausalLM",
            {"vocab_size": 97, "intermediate_size_mlp": 48, "layer_types": ["full_attention"] * 2, **_MOE}
            | {"no_rope_layers": [1, 0], "attn_temperature_tuning": True, "floor_scale": 24},
        ),
        "after 22 tokens differs",
    ),
    "hybrid": (
        ("Lfm2Config", "Lfm2ForCausalLM", {"vocab_size": 97, "layer_types": ["conv", "full_attention"]}),
        "conv",
    ),
    "window in the mask only": (
        ("PhimoeConfig", "PhimoeForCausalLM", {"vocab_size": 97, "sliding_window": WINDOW, **_MOE}),
        f"sliding window of {WINDOW}",
    ),
    "keyword arguments dropped": (("NemotronConfig", "NemotronForCausalLM", {"vocab_size": 97}), "keyword arguments"),
    "bidirectional": (("BertConfig", "BertLMHeadModel", {"vocab_size": 97}), "differs from the model's own"),
    "dynamic rope": (
        (
            "LlamaConfig",
            "LlamaForCausalLM",
            {"vocab_size": 97, "max_position_embeddings": 32}
            | {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        ),
        "'dynamic' rope",
    ),
    "longrope": (
        (
            "Phi3Config",
            "Phi3ForCausalLM",
            {"vocab_size": 97, "original_max_position_embeddings": 32}
            | {
                "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}
                | {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
            },
        ),
        "'longrope' rope",
    ),
    "learned positions": (
        (
            "GPT2Config",
            "GPT2LMHeadModel",
            {"vocab_size": 97, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 32},
        ),
        "learned embeddings for 32 positions",
    ),
}


def build(recipe: _Recipe, seed: int = 0) -> Any:
    """A float32 model with random weights, the same for the same seed; torch's generator is left as it was."""
    config_name, model_name, options = recipe
    # GPT-2-like configurations spell the same sizes otherwise, and must not be told twice
    sizes = {"initializer_range": 0.3, "eos_token_id": None} if "n_layer" in options else _SIZES
    config = getattr(transformers, config_name)(**{**sizes, **options})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return getattr(transformers, model_name)(config).eval()


@cache
def supported(name: str) -> Any:
    """A model of :data:`SUPPORTED` or :data:`SHARING`, built once; :func:`attached` gives it back unchanged."""
    return build({**SUPPORTED, **SHARING}[name])


def tiny_llama(vocab: int, seed: int = 0, **options: Any) -> Any:
    """A Llama with ``vocab`` tokens; ``options`` override its configuration."""
    return build(("LlamaConfig", "LlamaForCausalLM", {"vocab_size": vocab, **options}), seed)


@contextmanager
def attached(model: Any, **options: Any) -> Iterator[Engine]:
    """An engine on ``model`` that is closed at the end."""
    engine = Engine(model, **options)
    try:
        yield engine
    finally:
        engine.close()


@torch.inference_mode()
def layer_outputs(model: Any, text: torch.Tensor) -> list[torch.Tensor]:
    """transformers' own answer, of a copy: what it hooks to the layers to give it stays there."""
    outputs: tuple[torch.Tensor, ...] = copy.deepcopy(model)(text, output_hidden_states=True).hidden_states
    return list(outputs[1:])


def prompt(length: int, vocab: int, seed: int = 0) -> list[int]:
    """A prompt of random tokens, the same for the same arguments."""
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(0, vocab, (length,), generator=generator).tolist()


def autoregressive(engine: Engine, ids: list[int], tokens: int) -> list[int]:
    """``tokens`` ids after a prompt, one per forward, in a slot of its own."""
    return decode(engine, ids, tokens, lambda out: None)


def decode(engine: Engine, ids: list[int], tokens: int, draft: Callable[[list[int]], Any]) -> list[int]:
    """At least ``tokens`` ids after a prompt, cut to that many.

    Args:
        engine: with a free slot.
        ids: the prompt.
        tokens: how many.
        draft: the tree to step, from the output so far; None is the root alone.
    """
    slot = engine.alloc()
    out = list(engine.prefill(slot, ids).emitted)
    while len(out) < tokens:
        tree = draft(out) or TokenTree.chain([out[-1]])
        out += engine.step({slot: tree})[slot].emitted
    engine.free(slot)
    return out[:tokens]
