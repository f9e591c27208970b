"""Compute a model's shape from its configuration alone, before it is loaded.

:mod:`specbench.profiling.shape` measures the shape of a loaded model; a test compares the two.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from specbench.common import UsageError, parse_json, read_bytes
from specbench.hardware import AttentionLayers, ModelShape
from specbench.models.names import Source, configs

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_LARGEST = 16 << 20  # bytes of a configuration


def configured_shape(source: Source, dtype: str, revision: str | None = None) -> ModelShape | None:
    """Return the shape of a model.

    Returns:
        None if its configuration is not on this machine or does not determine it (int8, experts, unknown families).
    """
    file = _config_of(source.base or source, revision)
    if file is None or dtype not in _BYTES:
        return None
    try:
        config = parse_json(read_bytes(file, "", _LARGEST), file, "", nan=True)
        return _shape(config, _BYTES[dtype]) if isinstance(config, dict) else None
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
    return Path(found) if isinstance(found, str) and os.path.isfile(found) else None


def _shape(config: dict[str, Any], nbytes: int) -> ModelShape | None:
    family = config["model_type"]
    if family not in ("llama", "mistral", "qwen2", "qwen3"):
        return None
    hidden, layers, heads = (int(config[name]) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    kv_heads = int(config.get("num_key_value_heads") or heads)
    size = int(config.get("head_dim") or hidden // heads)
    vocabulary, tied = int(config["vocab_size"]), bool(config.get("tie_word_embeddings", False))
    attended = (heads + 2 * kv_heads) * size
    biases = 0
    if family == "qwen2":
        biases = attended
    elif family == "qwen3":
        biases = 2 * size  # norms of queries and keys
    if config.get("attention_bias") or config.get("mlp_bias") or config.get("use_sliding_window"):
        return None
    window = config.get("sliding_window", 4096) if family == "mistral" else None
    return ModelShape(
        matmul=layers * hidden * (attended + heads * size + 3 * int(config["intermediate_size"])),
        head=vocabulary * hidden,
        embedding=0 if tied else vocabulary * hidden,
        embedding_width=hidden,
        tied=tied,
        small=layers * (2 * hidden + biases) + hidden,
        attention=(
            AttentionLayers(
                layers=layers, query_heads=heads, kv_heads=kv_heads, key_size=size, value_size=size, window=window
            ),
        ),
        weight_bytes=nbytes,
        cache_bytes=nbytes,
    )
