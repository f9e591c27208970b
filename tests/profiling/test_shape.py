"""The cost of a step against a real forward: FLOPs as torch counts them, bytes as the tensors are large."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from support.models import WINDOW, attached, build, supported, tiny_llama
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from specbench.hardware.roofline import ModelShape, step_cost
from specbench.profiling.routing import with_routing
from specbench.profiling.shape import shape_of

CONTEXT = 48
WITHIN = 0.02
QWEN3_MOE = {"vocab_size": 97, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
FAMILIES = ("llama", "qwen3", "gpt2", "mixtral", "tied with grouped queries", "qwen3_moe")


def model_of(family: str) -> Any:
    if family == "tied with grouped queries":
        return tiny_llama(97, tie_word_embeddings=True)
    if family == "qwen3_moe":
        return build(("Qwen3MoeConfig", "Qwen3MoeForCausalLM", QWEN3_MOE))
    return supported(family)


def shape_from(model: Any) -> ModelShape:
    with attached(model, capacity=1, max_rows=2) as engine:
        return shape_of(engine)


class Read(TorchDispatchMode):
    """Bytes of parameters that operations read: each stretch of memory once, of embeddings the rows that were taken."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._weights = {p.untyped_storage().data_ptr(): p.ndim for p in model.parameters()}
        self._stretches: dict[tuple[int, int], int] = {}
        self._rows = 0

    def nbytes(self, *, experts: bool) -> int:
        """Of experts, or of all other parameters."""
        found = sum(size for (where, _), size in self._stretches.items() if (self._weights[where] == 3) == experts)
        return found if experts else found + self._rows

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.embedding.default:
            self._rows += out.nbytes
        elif not func.is_view:
            for tensor in (arg for arg in args if isinstance(arg, torch.Tensor)):
                where = tensor.untyped_storage().data_ptr()
                if where in self._weights:
                    self._stretches[where, int(tensor.storage_offset())] = tensor.nbytes
        return out


def cache_bytes(cache: Any) -> int:
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


@torch.inference_mode()
def forward(model: Any, rows: int, slots: int) -> tuple[int, int, int]:
    """(FLOPs, bytes but experts', experts' bytes) of transformers' own forward, ``rows`` of each of ``slots``."""
    model = copy.deepcopy(model)
    model.set_attn_implementation("eager")  # plain products, which the counter knows on every device
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    vocab = model.get_input_embeddings().num_embeddings
    ids = torch.randint(0, vocab, (slots, CONTEXT + rows), generator=torch.Generator().manual_seed(0))
    cache = DynamicCache(config=model.config)
    model(ids[:, :CONTEXT], past_key_values=cache)
    before = cache_bytes(cache)
    with FlopCounterMode(display=False) as flops, Read(model) as read:
        model(ids[:, CONTEXT:], past_key_values=cache)
    new = cache_bytes(cache) - before
    return flops.get_total_flops(), read.nbytes(experts=False) + before + 2 * new, read.nbytes(experts=True)


@pytest.mark.parametrize(("rows", "slots"), [(1, 1), (16, 1), (64, 1), (8, 3)])
@pytest.mark.parametrize("family", FAMILIES)
def test_flops_and_bytes_of_a_real_forward(family: str, rows: int, slots: int) -> None:
    model = model_of(family)
    shape = shape_from(model)
    flops, nbytes, of_experts = forward(model, rows, slots)
    cost = step_cost(shape, rows, CONTEXT, slots)
    assert cost.flops == pytest.approx(flops, rel=WITHIN)
    without = step_cost(shape.model_copy(update={"experts": None}), rows, CONTEXT, slots)
    assert without.bytes == pytest.approx(nbytes, rel=WITHIN)
    if not shape.experts:
        assert of_experts == 0
    elif rows * slots == 1:
        assert cost.bytes == pytest.approx(nbytes + of_experts, rel=WITHIN)
    else:  # which experts a few rows hit is this router's choice, and not the mean's
        one = shape.experts.elements * shape.weight_bytes
        assert shape.experts.active * one <= of_experts <= shape.experts.count * one


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 4, 16])
@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "llama4"])
def test_routed_experts_are_the_ones_read(family: str, rows: int) -> None:
    model = supported(family) if family == "llama4" else model_of(family)
    ids = torch.randint(0, 97, (1, rows), generator=torch.Generator().manual_seed(rows))
    experts = with_routing(shape_from(model), model, ids[0].tolist()).experts
    assert experts is not None
    plain = copy.deepcopy(model)
    plain.set_experts_implementation("eager")
    with Read(plain) as read:
        plain(ids, use_cache=False)
    assert experts.distinct(rows) * experts.elements * 4 == read.nbytes(experts=True)


def test_routing_is_averaged_over_adjacent_tokens() -> None:
    model = model_of("qwen3_moe")
    ids = torch.randint(0, 97, (100,), generator=torch.Generator().manual_seed(0)).tolist()
    experts = with_routing(shape_from(model), model, ids).experts
    assert experts is not None
    assert list(experts.routed) == [1, 2, 4, 8, 16, 32, 64]
    assert experts.routed[1] == experts.active
    assert list(experts.routed.values()) == sorted(experts.routed.values())
    assert experts.routed[64] < experts.distinct(100) <= experts.count
    assert experts.distinct(3) == pytest.approx((experts.routed[2] + experts.routed[4]) / 2)


@pytest.mark.parametrize("family", [*FAMILIES, "phi3", "gemma3", "mistral"])
def test_every_parameter_has_its_place(family: str) -> None:
    model = model_of(family)
    shape = shape_from(model)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert shape.tied == (family == "tied with grouped queries")
    assert (shape.weight_bytes, shape.cache_bytes) == (4, 4)
    heads = {(layers.query_heads, layers.kv_heads) for layers in shape.attention}
    assert heads == {(4, 4) if family == "gpt2" else (4, 2)}


@pytest.mark.parametrize(("family", "windows"), [("mistral", {WINDOW: 2}), ("gemma3", {WINDOW: 2, None: 2})])
def test_sliding_layers_differ_from_full_ones(family: str, windows: dict[int | None, int]) -> None:
    found = {layers.window: layers.layers for layers in shape_from(supported(family)).attention}
    assert found == windows
