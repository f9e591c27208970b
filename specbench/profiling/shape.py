"""The shape of a loaded model, found from its parameters without naming any model family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from specbench.common import UsageError
from specbench.hardware import AttentionLayers, Experts, ModelShape
from specbench.models import bytes_of, elements

# Names of the number of experts in transformers configurations; most have several of them.
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_ACTIVE = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k")


class _Cache(Protocol):
    @property
    def shapes(self) -> Mapping[int, tuple[int, int, int]]: ...


class _Calls(Protocol):
    @property
    def windows(self) -> Mapping[int, int | None]: ...
    @property
    def heads(self) -> Mapping[int, int]: ...


class Stepped(Protocol):
    """A model with what a forward revealed of its attention: an engine, or a step counted on the meta device."""

    @property
    def model(self) -> Any: ...
    @property
    def cache(self) -> _Cache: ...
    @property
    def calls(self) -> _Calls: ...


def shape_of(engine: Stepped) -> ModelShape:
    """The sizes that decide the cost of a step of the model that an engine runs.

    - Embedding tables are read one row per token, unless the table is also the LM head.
    - 3-D parameters whose first dimension is the number of experts are experts; a row goes through some of them.
    - Other 2-D weights are matrix products for every row, whichever side is the input.
    - The rest (norms, biases) is read and needs almost no FLOPs.

    Raises:
        UsageError: the configuration does not say how many experts are active.
    """
    model, recurrent = engine.model, getattr(engine.cache, "recurrent", None)
    config = model.config.get_text_config()
    head = model.get_output_embeddings().weight
    tables = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    words = model.get_input_embeddings().weight
    if not any(_same(words, table) for table in tables):  # the model's own embedding class
        tables.append(words)
    counts = expert_counts(model)
    sizes: Counter[str] = Counter()
    experts = 0
    parameters, count = dict(model.named_parameters()), elements(model)  # tied weights count once
    for name, parameter in parameters.items():
        if _same(parameter, head):
            sizes["head"] += count.pop(name)
        elif any(_same(parameter, table) for table in tables):
            sizes["embedding"] += count.pop(name)
        elif parameter.ndim == 3 and parameter.shape[0] in counts:
            experts = parameter.shape[0]
            sizes["expert"] += count.pop(name) // experts
        elif parameter.ndim == 2 and not name.endswith("bias"):
            sizes["matmul"] += count.pop(name)
        else:
            sizes["small"] += count.pop(name)
    sizes["matmul"] += sum(count.values())  # packed weights that are no parameters
    return ModelShape(
        matmul=sizes["matmul"],
        head=sizes["head"],
        embedding=sizes["embedding"],
        embedding_width=sum(table.shape[1] for table in tables),
        tied=_same(words, head),
        small=sizes["small"],
        experts=Experts(count=experts, active=_active(config), elements=sizes["expert"]) if experts else None,
        attention=_attention(engine),
        weight_bytes=bytes_of(model) / sum(elements(model).values()),
        cache_bytes=model.dtype.itemsize,
        state_bytes=recurrent.sequence_bytes if recurrent is not None else 0,
    )


def expert_counts(model: Any) -> set[int]:
    """Numbers of experts that the model's configuration names."""
    config = model.config.get_text_config()
    return {value for name in _EXPERTS if (value := getattr(config, name, None))}


def _attention(engine: Stepped) -> tuple[AttentionLayers, ...]:
    """Layers grouped by shape, as the engine's cache and attention recorded them in a forward."""
    calls = engine.calls
    alike = Counter(
        (calls.heads[layer], *shape, calls.windows.get(layer)) for layer, shape in engine.cache.shapes.items()
    )
    return tuple(
        AttentionLayers(
            layers=layers, query_heads=heads, kv_heads=kv_heads, key_size=key, value_size=value, window=window
        )
        for (heads, kv_heads, key, value, window), layers in alike.items()
    )


def _active(config: Any) -> int:
    for name in _ACTIVE:
        if value := getattr(config, name, None):
            return int(value)
    raise UsageError(
        f"this model has experts, and its configuration has no {_ACTIVE[0]}: how many a token goes through is not "
        "known; add it to config.json"
    )


def _same(one: Tensor, other: Tensor) -> bool:
    return one.is_meta == other.is_meta and _place(one) == _place(other) and one.shape == other.shape


def _place(tensor: Tensor) -> tuple[int, int]:
    """Identity of a tensor's storage; a meta tensor has no address, but its storage is still an object."""
    if tensor.is_meta:
        return tensor.untyped_storage()._cdata, int(tensor.storage_offset())
    return tensor.data_ptr(), 0
