"""The large models whose steps are timed, cut to fewer layers if memory is short."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Configurations that come with specbench, the most valuable first.
WANTED = ("qwen3-8b", "qwen2.5-7b")

#: Replacement for each of them in a rehearsal.
REHEARSED = "tiny"
STAND_IN = ", rehearsed"

#: Memory besides weights and cache: activations and scores of 512 rows, graphs, workspaces.
WORKING_BYTES = 3 << 30

_LEAST_LAYERS = 4
_BYTES = 2  # bytes of a weight and of a cached element: bfloat16


@dataclass(frozen=True)
class Shape:
    """A model as it is timed.

    Attributes:
        family: configuration of the model.
        layers: number of layers that are timed.
        of: number of layers of the whole model.
        spec: name to load it by.
    """

    family: str
    layers: int
    of: int
    spec: str

    @property
    def whole(self) -> bool:
        return self.layers == self.of

    @property
    def name(self) -> str:
        """Name in figures: a model with fewer layers, or a replacement, has another name."""
        if self.spec == f"config:{REHEARSED}":
            return f"{self.family}{STAND_IN}"
        return self.family if self.whole else f"{self.family} with {self.layers} of {self.of} layers"


def whole(family: str) -> Shape:
    """Return a family with all its layers."""
    layers = config(family)["num_hidden_layers"]
    return Shape(family, layers, layers, f"config:{family}")


def config(family: str) -> dict[str, Any]:
    """Read the configuration of a family."""
    from specbench.models.names import configs

    found: dict[str, Any] = json.loads(configs()[family].read_text(encoding="utf-8"))
    return found


def values_of(shape: Shape) -> dict[str, Any]:
    """Return the configuration of the shape's family, with all layers."""
    return config(REHEARSED if shape.spec == f"config:{REHEARSED}" else shape.family)


def cached_bytes(values: dict[str, Any], layers: int) -> int:
    """Bytes of the KV cache per token."""
    return 2 * _BYTES * layers * values["num_key_value_heads"] * _head(values)


def weight_bytes(values: dict[str, Any], layers: int) -> int:
    """Bytes of the weights, without norms and biases."""
    hidden, width = values["hidden_size"], values["intermediate_size"]
    heads = 2 * values["num_attention_heads"] + 2 * values["num_key_value_heads"]
    layer = heads * _head(values) * hidden + 3 * hidden * width
    tables = 1 if values.get("tie_word_embeddings") else 2
    found: int = _BYTES * (layers * layer + tables * values["vocab_size"] * hidden)
    return found


def fits(family: str, memory_bytes: int) -> bool:
    """Whether a whole family fits in this memory, without its cache."""
    values = config(family)
    return weight_bytes(values, values["num_hidden_layers"]) + WORKING_BYTES <= memory_bytes


def fitting(family: str, free_bytes: int, cells: int, folder: Path, extra_bytes: int = 0) -> tuple[Shape | None, str]:
    """Return as many layers of a family as fit in memory.

    Args:
        family: a name of :data:`WANTED`.
        free_bytes: free memory of the device.
        cells: tokens that the cache will hold.
        folder: folder for the configuration of a model with fewer layers.
        extra_bytes: memory needed for other things on the device, such as a draft head.

    Returns:
        (the shape or None, what was left out and why, or "").
    """
    values = config(family)
    of = values["num_hidden_layers"]
    room = free_bytes - extra_bytes - WORKING_BYTES

    def need(layers: int) -> int:
        return weight_bytes(values, layers) + cells * cached_bytes(values, layers)

    if need(of) <= room:
        return whole(family), ""
    needed = (need(of) + extra_bytes + WORKING_BYTES) / 2**30
    why = f"{free_bytes / 2**30:.1f} GiB are free, and {family} needs {needed:.1f}"
    layers = next((count for count in range(of - 1, _LEAST_LAYERS - 1, -1) if need(count) <= room), None)
    if layers is None:
        return None, f"{family} is left out: {why}"
    file = folder.resolve() / f"{family}-{layers}-layers.json"
    cut = {**values, "num_hidden_layers": layers}
    if "layer_types" in cut:
        cut["layer_types"] = cut["layer_types"][:layers]
    if "max_window_layers" in cut:
        cut["max_window_layers"] = min(cut["max_window_layers"], layers)
    file.write_text(json.dumps(cut), encoding="utf-8")
    return Shape(family, layers, of, f"config:{file}"), f"{family} is cut to {layers} of {of} layers: {why}"


def rehearsed(family: str) -> Shape:
    """Return the replacement for a family in a rehearsal."""
    layers = config(REHEARSED)["num_hidden_layers"]
    return Shape(family, layers, layers, f"config:{REHEARSED}")


def _head(values: dict[str, Any]) -> int:
    size: int = values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]
    return size
