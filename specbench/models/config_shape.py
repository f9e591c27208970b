"""Compute a model's shape from its configuration alone, before it is loaded.

:mod:`specbench.profiling.shape` measures the shape of a loaded model; a test compares the two.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.common import UsageError, parse_json, read_bytes
from specbench.models.configs.layouts import translated
from specbench.models.names import Source, aliases, configs

if TYPE_CHECKING:
    from specbench.hardware import ModelShape

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_LARGEST = 16 << 20  # bytes of a configuration


def configured_shape(source: Source, dtype: str, revision: str | None = None) -> ModelShape | None:
    """Return the shape of a model.

    Returns:
        None if its configuration is not on this machine or does not determine it (int8, experts, unknown families).
    """
    file = _config_of(source.base or source, revision)
    if file is None or dtype not in _BYTES or (sizes := _read(file)) is None:
        return None
    from specbench.hardware import ModelShape  # imports numpy

    return ModelShape(**sizes, weight_bytes=_BYTES[dtype], cache_bytes=_BYTES[dtype])


def configured_parameters(file: Path) -> int | None:
    """Number of weights of the model of a config.json, tied ones counted once; None as :func:`configured_shape`."""
    if (sizes := _read(file)) is None:
        return None
    experts = sizes["experts"]
    of_experts = experts["count"] * experts["elements"] if experts else 0
    return int(of_experts + sum(sizes[part] for part in ("matmul", "head", "embedding", "small")))


def _read(file: Path) -> dict[str, Any] | None:
    try:
        config = parse_json(read_bytes(file, "", _LARGEST), file, "", nan=True)
        return _sizes(translated(config, file)) if isinstance(config, dict) else None
    except (UsageError, KeyError, TypeError, ValueError, ZeroDivisionError):  # loading reports the error
        return None


def _config_of(source: Source, revision: str | None) -> Path | None:
    """Return the path of a configuration file, or None if it is not on this machine."""
    if source.kind == "config":
        return Path(source.location)
    if source.kind == "folder":
        return Path(source.location, "config.json")
    if source.kind == "gguf":  # the package has configurations of the aliases' GGUF files
        return configs().get(source.name)
    from huggingface_hub import try_to_load_from_cache  # slow to import

    try:
        found = try_to_load_from_cache(source.location, "config.json", revision=revision)
    except ValueError:  # not a valid hub id: loading reports the error
        return None
    if isinstance(found, str) and os.path.isfile(found):
        return Path(found)
    return configs().get(aliases().get(source.name, {}).get("shape", ""))


def _sizes(config: dict[str, Any]) -> dict[str, Any] | None:
    """Fields of :class:`specbench.hardware.ModelShape`; None for unknown families."""
    family = config["model_type"]
    if family not in ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "starcoder2"):
        return None
    hidden, layers, heads = (int(config[name]) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    kv_heads = int(config.get("num_key_value_heads") or heads)
    size = int(config.get("head_dim") or hidden // heads)
    inner, plain = int(config["intermediate_size"]), family == "starcoder2"  # plain: no gate, norms with a bias
    vocabulary, tied = int(config["vocab_size"]), bool(config.get("tie_word_embeddings", plain))
    attended = (heads + 2 * kv_heads) * size
    biases = 0
    if family == "qwen2":
        biases = attended
    elif family in ("qwen3", "qwen3_moe"):
        biases = 2 * size  # norms of queries and keys
    elif plain and config.get("use_bias", True):
        biases = attended + 2 * hidden + inner
    experts, block = None, (2 if plain else 3) * inner
    if family == "qwen3_moe":
        if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
            return None
        named = config.get("num_experts") or config["num_local_experts"]  # the hub's name, and that of transformers 5
        count = block = int(named)  # of the block only the router sees every row
        each = 3 * layers * hidden * int(config["moe_intermediate_size"])
        experts = {"count": count, "active": int(config["num_experts_per_tok"]), "elements": each}
    if config.get("attention_bias") or config.get("mlp_bias") or config.get("use_sliding_window"):
        return None
    window = config.get("sliding_window", 4096) if family == "mistral" or plain else None
    attention = {
        "layers": layers, "query_heads": heads, "kv_heads": kv_heads, "key_size": size, "value_size": size,
        "window": window,
    }  # fmt: skip
    return {
        "matmul": layers * hidden * (attended + heads * size + block),
        "head": vocabulary * hidden,
        "embedding": 0 if tied else vocabulary * hidden,
        "embedding_width": hidden,
        "tied": tied,
        "small": (2 * layers + 1) * hidden * (2 if plain else 1) + layers * biases,
        "experts": experts,
        "attention": (attention,),
    }
