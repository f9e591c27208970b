"""Shapes: the large models whose steps are timed, cut to fewer layers where memory is short. No torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Configurations that come with specbench, the most valuable first.
WANTED = ("qwen3-8b", "qwen2.5-7b")

#: What stands in for each of them in a rehearsal.
REHEARSED = "tiny"
STAND_IN = ", rehearsed"

#: Beside weights and cache: activations and scores of 512 rows, graphs, workspaces.
WORKING_BYTES = 3 << 30

_LEAST_LAYERS = 4
_BYTES = 2  # of a weight and of a cached element: bfloat16


@dataclass(frozen=True)
class Shape:
    """A model's shape, as it is timed.

    Attributes:
        family: the configuration that it is made of.
        layers: of it.
        of: layers of the whole model.
        spec: by which it is loaded.
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
        """As figures name it: one with fewer layers is another model, and so is what stands in for it."""
        if self.spec == f"config:{REHEARSED}":
            return f"{self.family}{STAND_IN}"
        return self.family if self.whole else f"{self.family} with {self.layers} of {self.of} layers"


def whole(family: str) -> Shape:
    """All layers of a family."""
    layers = config(family)["num_hidden_layers"]
    return Shape(family, layers, layers, f"config:{family}")


def config(family: str) -> dict[str, Any]:
    """The configuration of a family."""
    from specbench.models.names import configs

    found: dict[str, Any] = json.loads(configs()[family].read_text(encoding="utf-8"))
    return found


def values_of(shape: Shape) -> dict[str, Any]:
    """The configuration of a shape's layers, whose number is the family's."""
    return config(REHEARSED if shape.spec == f"config:{REHEARSED}" else shape.family)


def cached_bytes(values: dict[str, Any], layers: int) -> int:
    """Bytes that a token takes in the cache."""
    return 2 * _BYTES * layers * values["num_key_value_heads"] * _head(values)


def weight_bytes(values: dict[str, Any], layers: int) -> int:
    """Bytes of the weights, norms and biases left out."""
    hidden, width = values["hidden_size"], values["intermediate_size"]
    heads = 2 * values["num_attention_heads"] + 2 * values["num_key_value_heads"]
    layer = heads * _head(values) * hidden + 3 * hidden * width
    tables = 1 if values.get("tie_word_embeddings") else 2
    found: int = _BYTES * (layers * layer + tables * values["vocab_size"] * hidden)
    return found


def fits(family: str, memory_bytes: int) -> bool:
    """Whether so much memory has room for a whole family, its cache left out."""
    values = config(family)
    return weight_bytes(values, values["num_hidden_layers"]) + WORKING_BYTES <= memory_bytes


def fitting(family: str, free_bytes: int, cells: int, folder: Path, beside: int = 0) -> tuple[Shape | None, str]:
    """The most of a family that memory has room for.

    Args:
        family: a name of :data:`WANTED`.
        free_bytes: on the device.
        cells: tokens that the cache is to hold.
        folder: takes the configuration of a model with fewer layers.
        beside: bytes for what else is on the device, such as a draft head.

    Returns:
        (the shape or None, what was left out and why or "").
    """
    values = config(family)
    of = values["num_hidden_layers"]
    room = free_bytes - beside - WORKING_BYTES

    def need(layers: int) -> int:
        return weight_bytes(values, layers) + cells * cached_bytes(values, layers)

    if need(of) <= room:
        return whole(family), ""
    why = f"{free_bytes / 2**30:.1f} GiB are free, and {family} takes {(need(of) + beside + WORKING_BYTES) / 2**30:.1f}"
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
    """The stand-in for a family."""
    layers = config(REHEARSED)["num_hidden_layers"]
    return Shape(family, layers, layers, f"config:{REHEARSED}")


def _head(values: dict[str, Any]) -> int:
    size: int = values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]
    return size
