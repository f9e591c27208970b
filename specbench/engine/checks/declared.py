"""Find features that the engine does not support in a model's configuration and attention calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from specbench.common import UsageError
from specbench.decoding import TokenTree
from specbench.engine import pack
from specbench.engine.attention.interface import Backend, Calls, UnsupportedAttention, Visibility
from specbench.engine.cache import LayerShape, ShapeRecorder
from specbench.engine.layers.recurrent import Shapes
from specbench.engine.program import Program

_LAYER_TYPES = (
    *("full_attention", "sliding_attention", "chunked_attention"),
    *("linear_attention", "conv", "mamba", "hybrid", "hybrid_sliding"),  # with states, see engine/layers/recurrent.py
    *("dummy", "mlp", "moe"),  # without attention
)


def check_declared(model: Any, capacity: int) -> int | None:
    """Refuse a model whose configuration has a feature that the engine does not support.

    Returns the number of the model's positions, or None if it is not limited; rows of the last tree may be after them.
    """
    stateful = getattr(model, "_is_stateful", False)  # it may have no attention at all
    if not stateful and not getattr(model, "_supports_attention_backend", False):
        raise UnsupportedAttention(
            "this model's attention does not go through transformers' AttentionInterface, which the engine needs"
        )
    config = model.config.get_text_config()
    for kind in getattr(config, "layer_types", None) or ():
        if kind not in _LAYER_TYPES:
            raise UnsupportedAttention(f"this model has '{kind}' layers, which the engine does not support yet")
    found = []
    for rope_type, original in _length_dependent_ropes(config):
        if capacity > original:
            raise UnsupportedAttention(
                f"this model's '{rope_type}' rope changes its frequencies after {original} positions, which the engine "
                f"does not support yet; prompt and answer may reach {capacity} tokens here, so use shorter ones"
            )
        found.append(original)
    table = _learned_positions(model, config)
    if table is not None:
        if capacity > table:
            raise UnsupportedAttention(
                f"this model has learned embeddings for {table} positions only; prompt and answer may reach {capacity} "
                "tokens here, so use shorter ones"
            )
        found.append(table)
    return min(found, default=None)


def _length_dependent_ropes(config: Any) -> Iterator[tuple[str, int]]:
    """Yield (type, positions up to which its frequencies are constant) of every rope that depends on the length."""
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, Mapping)]  # one dict per layer type
    for rope in nested or [parameters]:
        rope_type = str(rope.get("rope_type", rope.get("type", "default")))
        if "dynamic" in rope_type or rope_type == "longrope":
            key = "original_max_position_embeddings"
            known = (rope.get(key), getattr(config, key, None), getattr(config, "max_position_embeddings", None))
            yield rope_type, min((limit for limit in known if limit is not None), default=0)


def _learned_positions(model: Any, config: Any) -> int | None:
    """Number of learned positions; None without a position table. Some tables have a few more rows than positions."""
    positions = getattr(config, "max_position_embeddings", None)
    words = model.get_input_embeddings()
    sizes = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding) and m is not words]
    return positions if positions is not None and any(0 <= size - positions < 8 for size in sizes) else None


@contextmanager
def refusing() -> Iterator[None]:
    """Turn an error before or inside a model's first forward into UnsupportedAttention."""
    try:
        yield
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        text = (str(error).splitlines() or [""])[0]
        if isinstance(error, RuntimeError) and ("memory" in text or "CUDA" in text):
            raise
        raise UnsupportedAttention(
            f"this model's forward does not run on the engine's cache and attention ({type(error).__name__}: {text})"
        ) from error


def learn_layers(
    program: Program, backend: Callable[[Visibility], Backend], device: torch.device, height: int = 0
) -> tuple[dict[int, LayerShape], Calls, dict[nn.Module, Shapes]]:
    """Learn from a forward of one row what each layer stores, its attention parameters, and recurrent layers' states.

    ``height``: rows of the backend's tiles.
    """
    recorder, calls = ShapeRecorder(), Calls()
    batch, shape = pack.Batch.of({0: TokenTree.chain([0])}), pack.Shape(1, 1, height)
    packed = np.empty(shape.width_in, dtype=np.int32)
    pack.fill(packed, shape, batch, [0])
    packed_there = torch.from_numpy(packed).to(device)
    with recorder.watching():
        program.logits(packed_there, shape, recorder, backend, groups=batch.groups([0]), calls=calls)
    if not recorder.shapes and not recorder.found:
        raise UsageError("this model has no cache that the engine can manage; it is not supported yet")
    if recorder.shapes and not calls.layers:
        raise UnsupportedAttention("this model's layers do not call the attention that is set for them")
    return recorder.shapes, calls, {**recorder.found}


def check_windows(model: Any, calls: Calls, reach: int) -> None:
    """Check that each layer passes the sliding window that the configuration declares to its attention.

    A model may apply the window only in its own mask, which the engine does not use, so the window would be lost.
    """
    windows = {layer: how.sight.window for layer, how in calls.layers.items()}
    config = model.config.get_text_config()
    declared = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not kinds and (declared is None or getattr(config, "use_sliding_window", True) is False):
        return  # no window is declared, so the window of the call is right
    for layer, brought in windows.items():
        slides = layer < len(kinds) and kinds[layer] == "sliding_attention" if kinds else True
        # The configuration may have the window under another name; then only that of the call is known.
        expected = (brought if declared is None else declared) if slides else None
        unknown = slides and expected is None
        if unknown or (brought != expected and min(w for w in (brought, expected) if w is not None) < reach):
            raise UnsupportedAttention(
                f"layer {layer} of this model declares a sliding window of {expected} but attends with {brought}, "
                "which the engine does not support yet"
            )
