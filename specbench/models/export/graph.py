"""Check that llama.cpp computes the same model as transformers, and map parameter names.

Refuses models that llama.cpp would not load or would decode differently: rope scaling other than Llama 3's, sliding
windows, and biases that llama.cpp does not add in that model family.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gguf
import torch
from torch import Tensor

from specbench.common import UsageError

_TODO = "give --to hf, or choose a plain Llama, Qwen2 or Qwen3"

#: Tensor of divisors of the rotary frequencies; computed from the model's rope, not one of its parameters.
FACTORS = "rope_freqs.weight"

_ATTENTION = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True)
class Graph:
    """What llama.cpp supports in a model family.

    Attributes:
        arch: number in the ``gguf`` package.
        adjacent: rope rotates adjacent values of a head, where transformers rotates its two halves.
        ropes: supported rope types.
        biased: projections that may have a bias.
        square: head size must be hidden size divided by the number of heads.
    """

    arch: Any
    adjacent: bool = False
    ropes: tuple[str, ...] = ("default",)
    biased: tuple[str, ...] = ()
    square: bool = False


_GRAPHS = {
    "llama": Graph(
        gguf.MODEL_ARCH.LLAMA,
        adjacent=True,
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
        own: transformers' name.
        heads: number of heads whose rows must be reordered for llama.cpp's rope; None if the order is the same.
    """

    name: str
    own: str
    weight: Tensor
    heads: int | None


def head_size(config: Any) -> int:
    """Return the size of an attention head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def graph_of(model: Any, name: str) -> Graph:
    """Return llama.cpp's graph of a model; raise a UsageError for models that it would compute differently."""
    config = model.config
    family, graph = config.model_type, _GRAPHS.get(config.model_type)
    if graph is None or not type(model).__module__.startswith("transformers.models."):
        known = ", ".join(_GRAPHS)
        raise UsageError(f"cannot export {name} to GGUF: its family '{family}' is not one of {known}; {_TODO}")
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
            raise UsageError(
                f"cannot export {name} to GGUF: its {what} is {found}, and llama.cpp's '{family}' has {wanted}; {_TODO}"
            )
    if graph.square and head_size(config) * config.num_attention_heads != config.hidden_size:
        raise UsageError(
            f"cannot export {name} to GGUF: llama.cpp's '{family}' does not support its head size "
            f"{head_size(config)}; {_TODO}"
        )
    for named in named_weights(model, graph, name):
        part, kind = named.own.rsplit(".", 2)[-2:]
        if kind == "bias" and part not in graph.biased:
            raise UsageError(
                f"cannot export {name} to GGUF: llama.cpp's '{family}' does not add its bias {named.own}; {_TODO}"
            )
    return graph


def named_weights(model: Any, graph: Graph, name: str) -> Iterator[Named]:
    """Yield the parameters under llama.cpp's names, tied embeddings once, and then :data:`FACTORS`, if any."""
    config = model.config
    names = gguf.get_tensor_name_map(graph.arch, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads} if graph.adjacent else {}
    for own, weight in model.named_parameters():
        theirs = names.get_name(own, try_suffixes=(".weight", ".bias"))
        if theirs is None:
            raise UsageError(f"cannot export {name} to GGUF: llama.cpp's '{config.model_type}' has no {own}; {_TODO}")
        yield Named(theirs, own, weight.detach(), heads.get(own.split(".")[-2]))
    if config.rope_parameters.get("rope_type", "default") != "default":
        steps = torch.arange(0, head_size(config), 2, dtype=torch.float32) / head_size(config)
        plain = 1.0 / config.rope_parameters["rope_theta"] ** steps
        yield Named(FACTORS, "model.rotary_emb", plain / model.model.rotary_emb.inv_freq.cpu(), None)


def interleaved(rows: Tensor, heads: int) -> Tensor:
    """Return a projection's rows in llama.cpp's order: in each head, the rows of its two halves alternate."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def halved(rows: Tensor, heads: int) -> Tensor:
    """The inverse of :func:`interleaved`."""
    return rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
