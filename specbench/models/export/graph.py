"""Whether llama.cpp computes of a model's weights what transformers does, and how it calls them.

What is refused here would load and decode other text, or not load: rotary embeddings scaled otherwise than Llama 3's,
sliding windows, biases that llama.cpp's code of that family does not add.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gguf
import torch
from torch import Tensor

from specbench.common import UsageError

_TODO = "take --to hf, or a plain Llama, Qwen2 or Qwen3"

#: What rotary frequencies are divided by; computed of a model, and no parameter of it.
FACTORS = "rope_freqs.weight"

_ATTENTION = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True)
class Graph:
    """What llama.cpp has for a family.

    Attributes:
        arch: its number in the ``gguf`` package.
        neighbours: it rotates neighbours of a head where transformers rotates its halves.
        ropes: rotary embeddings that it has.
        biased: projections that it adds a bias to where there is one.
        square: a head's size is the width divided by the heads.
    """

    arch: Any
    neighbours: bool = False
    ropes: tuple[str, ...] = ("default",)
    biased: tuple[str, ...] = ()
    square: bool = False


_GRAPHS = {
    "llama": Graph(
        gguf.MODEL_ARCH.LLAMA,
        neighbours=True,
        ropes=("default", "llama3"),
        biased=(*_ATTENTION, "o_proj", "gate_proj", "up_proj", "down_proj"),
    ),
    "qwen2": Graph(gguf.MODEL_ARCH.QWEN2, biased=_ATTENTION, square=True),
    "qwen3": Graph(gguf.MODEL_ARCH.QWEN3, biased=_ATTENTION),
}


@dataclass(frozen=True)
class Named:
    """A parameter under llama.cpp's name.

    Attributes:
        own: transformers'.
        heads: whose rows are rotated by neighbours; None where none are.
    """

    name: str
    own: str
    weight: Tensor
    heads: int | None


def head_size(config: Any) -> int:
    """Values of a head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def graph_of(model: Any, name: str) -> Graph:
    """The graph for a model."""
    config = model.config
    family, graph = config.model_type, _GRAPHS.get(config.model_type)
    if graph is None or not type(model).__module__.startswith("transformers.models."):
        known = ", ".join(_GRAPHS)
        raise UsageError(f"{name} is of family '{family}', and GGUF is written of {known} here; {_TODO}")
    rope = config.rope_parameters
    scaling, full = rope.get("rope_type", "default"), "full_attention"
    for what, found, wanted in (
        ("activation", config.hidden_act, "silu"),
        ("rotary embedding", "default" if scaling in graph.ropes else scaling, "default"),
        ("rotated part of a head", rope.get("partial_rotary_factor", 1.0), 1.0),
        ("attention", next((kind for kind in getattr(config, "layer_types", None) or () if kind != full), full), full),
        ("rows of the LM head", model.get_output_embeddings().weight.shape[0], config.vocab_size),
    ):
        if found != wanted:
            raise UsageError(f"{name} has another {what} ({found}) than llama.cpp's '{family}' ({wanted}); {_TODO}")
    if graph.square and head_size(config) * config.num_attention_heads != config.hidden_size:
        raise UsageError(f"{name} has heads of {head_size(config)}, which llama.cpp's '{family}' has not; {_TODO}")
    for named in named_weights(model, graph, name):
        part, kind = named.own.rsplit(".", 2)[-2:]
        if kind == "bias" and part not in graph.biased:
            raise UsageError(f"{name} has {named.own}, which llama.cpp's '{family}' does not add; {_TODO}")
    return graph


def named_weights(model: Any, graph: Graph, name: str) -> Iterator[Named]:
    """Yield the parameters under llama.cpp's names, tied embeddings once, and then :data:`FACTORS`, if any."""
    config = model.config
    names = gguf.get_tensor_name_map(graph.arch, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads} if graph.neighbours else {}
    for own, weight in model.named_parameters():
        theirs = names.get_name(own, try_suffixes=(".weight", ".bias"))
        if theirs is None:
            raise UsageError(f"{name} has {own}, which llama.cpp's '{config.model_type}' has not; {_TODO}")
        yield Named(theirs, own, weight.detach(), heads.get(own.split(".")[-2]))
    if config.rope_parameters.get("rope_type", "default") != "default":
        steps = torch.arange(0, head_size(config), 2, dtype=torch.float32) / head_size(config)
        plain = 1.0 / config.rope_parameters["rope_theta"] ** steps
        yield Named(FACTORS, "model.rotary_emb", plain / model.model.rotary_emb.inv_freq.cpu(), None)


def interleaved(rows: Tensor, heads: int) -> Tensor:
    """Rows of a projection in llama.cpp's order, which rotates neighbours: of each head, its halves' rows in turn."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def halved(rows: Tensor, heads: int) -> Tensor:
    """The inverse of :func:`interleaved`."""
    return rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
