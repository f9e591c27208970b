"""Whole models by fused layers: the text of the layers as they are, and what is not used where it would be wrong."""

from __future__ import annotations

import copy
import importlib.util
import random
from functools import cache
from typing import Any

import pytest
import torch
from support.decoders import hiding_tree
from support.models import SUPPORTED, attached, autoregressive, build, decode, prompt
from support.wording import wording

from specbench.common import EnvironmentRefused
from specbench.decoding import TokenTree
from specbench.engine import Engine, graphs, stepper, tuner
from specbench.engine.kernels import dependent, gated, norm, rotate
from specbench.engine.layers import code, gpu_layers, skinny
from specbench.engine.layers.gpu_layers import FUSIONS, FusedLayers
from specbench.engine.layers.skinny import Config, SkinnyProducts
from specbench.engine.sampler import Sampling
from specbench.engine.teacher_forcing import Chain, rate_tokens

DENSE = ("llama", "qwen2", "qwen3", "mistral", "phi3", "gemma3")
OPTIONS: dict[str, Any] = {"slots": 2, "capacity": 40, "max_rows": 16}
TOKENS = 3


@pytest.fixture(autouse=True)
def _fused_on_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(code.OF_DEVICE, "cpu", FusedLayers)
    monkeypatch.setattr(stepper, "_TEXT", 13)  # an engine interprets it four times before a test begins


@cache
def small(family: str, layers: int = 2) -> Any:
    """A model of a family with few layers: Triton's interpreter takes its time for each."""
    config, model, options = SUPPORTED[family]
    kinds = {"layer_types": ["sliding_attention", "full_attention"][:layers]} if "layer_types" in options else {}
    found = build((config, model, {**options, "num_hidden_layers": layers, **kinds}))
    return found.to("cuda" if torch.cuda.is_available() else "cpu")


def fusions(engine: Engine) -> list[str]:
    found: list[str] = engine.report()["fusions"]
    return found


@pytest.mark.parametrize(
    "family", [pytest.param(each, marks=[] if each == "gemma3" else pytest.mark.slow) for each in DENSE]
)
def test_fused_layers_decode_what_the_models_own_decode(family: str) -> None:
    model = small(family)
    vocab = model.get_input_embeddings().num_embeddings
    ids = prompt(6, vocab)
    sampling = Sampling(0.9, seed=3)
    with attached(model, native=False, sampling=sampling, **OPTIONS) as engine:
        expected = autoregressive(engine, ids, TOKENS)
    with attached(model, sampling=sampling, **OPTIONS) as engine:
        assert fusions(engine) == [*FUSIONS]
        assert engine.report()["not_fused"] == {}
        assert (engine.report()["dependent_launches"] == "on") == (dependent.why_not(engine.device) == "")
        assert autoregressive(engine, ids, TOKENS) == expected
        engine.alloc()
        rng = random.Random(1)
        drafts: list[list[int]] = [expected[1:3], expected[2:3], []]  # of which two tokens are right, one and none

        def draft(out: list[int]) -> TokenTree:
            return hiding_tree(rng, out[-1], drafts[min(len(out), 3) - 1], vocab, 6, apart=True)

        assert decode(engine, ids, TOKENS, draft) == expected
    with attached(model, native=False, sampling=sampling, **OPTIONS) as engine:
        assert "fusions" not in engine.report()
        assert autoregressive(engine, ids, TOKENS) == expected


def test_known_texts_are_rated_by_the_models_own_layers() -> None:
    model, ids, chain = small("llama"), prompt(6, 97), [5, 6, 7]
    found = []
    for native in (False, None):
        with attached(model, native=native, **OPTIONS) as engine:
            slot = engine.alloc()
            engine.prefill(slot, ids)
            assert bool(engine.report().get("fusions")) == (native is None)
            found += rate_tokens(engine, [Chain(slot, 4, chain), Chain(slot, 6, chain)], [chain, chain])
            engine.step({slot: TokenTree.chain([5])})  # the fused layers go on as before
    assert [[best for _, best in each] for each in found[:2]] == [[best for _, best in each] for each in found[2:]]
    plain, fused = ([value for each in half for value, _ in each] for half in (found[:2], found[2:]))
    assert fused == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize("family", [pytest.param("qwen3", marks=pytest.mark.slow), "gemma3"])
def test_tapped_layers_are_those_of_the_model(family: str) -> None:
    model = small(family)
    taps, ids = (0, 1), prompt(5, 97)
    found = []
    for native in (False, None):
        with attached(model, native=native, **OPTIONS) as engine:
            slot = engine.alloc()
            engine.prefill(slot, ids)
            hidden = engine.step({slot: TokenTree([5, 6, 7], [-1, 0, 0])}, taps=taps)[slot].hidden
            assert hidden is not None
            found.append(hidden)
    plain, fused = found
    assert torch.allclose(plain, fused, atol=1e-4)
    first, second = plain.chunk(2, -1)
    assert not torch.allclose(first, second, atol=1e-2)


def test_experts_stay_and_what_is_around_them_is_fused() -> None:
    model = small("mixtral", 1)
    with attached(model, native=False, **OPTIONS) as engine:
        expected = autoregressive(engine, prompt(8, 149), TOKENS)
    with attached(model, **OPTIONS) as engine:
        assert fusions(engine) == ["norm", "attention"]
        assert engine.report()["not_fused"] == {"mlp": "its MLP is not a supported gated MLP"}
        assert autoregressive(engine, prompt(8, 149), TOKENS) == expected


@pytest.mark.parametrize(
    ("fusion", "kernel", "module"),
    [("norm", "add_norm", norm), ("attention", "rotate", rotate), ("mlp", "gated", gated)],
)
def test_a_kernel_that_computes_something_else_is_not_used(
    fusion: str, kernel: str, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = getattr(module, kernel)

    def wrong(*args: Any) -> Any:
        found = own(*args)
        return (found[0] * 1.01, found[1]) if isinstance(found, tuple) else found * 1.01

    model = small("llama", 1)
    with attached(model, native=False, **OPTIONS) as engine:
        expected = autoregressive(engine, prompt(8, 97), TOKENS)
    monkeypatch.setattr(module, kernel, wrong)
    with attached(model, **OPTIONS) as engine:
        assert fusions(engine) == [each for each in FUSIONS if each != fusion]
        assert wording(engine.report()["not_fused"][fusion])
        assert autoregressive(engine, prompt(8, 97), TOKENS) == expected


def test_a_kernel_that_cannot_be_compiled_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("out of resource\nmore")

    monkeypatch.setattr(gated, "gated", broken)
    with attached(small("llama", 1), **OPTIONS) as engine:
        assert engine.report()["not_fused"] == {"mlp": "layer 0: RuntimeError: out of resource"}


def test_layers_with_a_factor_on_the_residual_stay_as_they_are() -> None:
    model = build(("GraniteConfig", "GraniteForCausalLM", {"vocab_size": 97, "residual_multiplier": 0.5}))
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    with attached(model, native=False, **OPTIONS) as engine:
        expected = autoregressive(engine, prompt(8, 97), TOKENS)
    with attached(model, **OPTIONS) as engine:
        report = engine.report()
        assert "fusions" not in report
        why = report["why_not_own" if engine.device.type == "cpu" else "why_not_fused"]
        assert wording(why)
        assert autoregressive(engine, prompt(8, 97), TOKENS) == expected
    with pytest.raises(EnvironmentRefused, check=wording):
        Engine(model, native=True, **OPTIONS)


def test_merged_weights_are_no_second_copy_and_serve_the_next_engine() -> None:
    model = copy.deepcopy(small("qwen2", 1))
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    places = []
    for _ in range(2):
        with attached(model, **OPTIONS):
            layer = model.model.layers[0]
            places.append([each.weight.data_ptr() for each in (layer.self_attn.q_proj, layer.mlp.up_proj)])
    assert places[0] == places[1]
    attention = layer.self_attn
    assert attention.k_proj.weight.data_ptr() == attention.q_proj.weight.data_ptr() + attention.q_proj.weight.nbytes
    assert attention.v_proj.bias.untyped_storage()._cdata == attention.q_proj.bias.untyped_storage()._cdata
    assert all(torch.equal(each, before[name]) for name, each in model.named_parameters())


def test_without_triton_layers_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with attached(small("llama", 1), backend="reference", **OPTIONS) as engine:
        assert wording(engine.code.why)


@pytest.mark.slow
def test_a_layer_may_be_off_as_far_as_it_amplifies_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    model, own = copy.deepcopy(small("llama", 1)).half(), gated.gated

    def fused(off: float, noise: float) -> list[str]:
        monkeypatch.setattr(gated, "gated", lambda *args: own(*args) * (1 + off))
        monkeypatch.setattr(gpu_layers, "_NOISE", noise)
        with attached(model, backend="reference", capacity=24, max_rows=2) as engine:
            return fusions(engine)

    rounding = torch.finfo(torch.float16).eps
    monkeypatch.setitem(gpu_layers.TOLERANCE, torch.float16, rounding)
    assert fused(2 * rounding, 0.0) == ["norm", "attention"]
    assert fused(2 * rounding, 3.0) == [*FUSIONS]
    assert fused(8 * rounding, 99.0) == ["norm", "attention"], "beyond the ceiling"


def test_products_of_few_rows_go_where_they_were_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine chooses products before it captures and reports them; a resumed engine repeats the reported choice."""
    asked: list[tuple[int, int, int]] = []
    read: set[int] = set()

    def ours(x: Any, weight: Any, bias: Any, config: Config) -> Any:
        asked.append((len(x), *weight.shape))
        read.add(weight.data_ptr())
        return torch.cat([torch.nn.functional.linear(row, weight, bias) for row in x.split(1)])

    def load(self: SkinnyProducts) -> str:
        self._kernel, self._candidates = ours, lambda shape, dtype: [Config(64, 64, 1, 4, 3)]
        return ""

    def timed(device: Any) -> Any:
        def time(work: Any) -> float:
            asked.clear()
            work()
            return 1.0 if asked else 2.0  # ours is the faster one

        return time

    def again(work: Any) -> Any:
        """A capture that does it once more: what is interpreted cannot be recorded."""
        work()
        return work

    monkeypatch.setattr(SkinnyProducts, "_load", load)
    monkeypatch.setattr(skinny, "cuda_time", timed)
    monkeypatch.setattr(graphs, "cuda_capture", lambda device: again)
    monkeypatch.setattr(
        code.LayerBackend, "_why_barred", lambda self, native, captured: "no" if native is False else ""
    )
    monkeypatch.setattr(tuner, "_REPLAYS", 1)
    model, ids, few = small("llama", 1), prompt(20, 97), {**OPTIONS, "max_rows": 2}
    with attached(model, native=False, graphs=True, **few) as engine:
        expected = autoregressive(engine, ids, TOKENS)
        assert engine.report()["products"] == []
        engine.pad_as([{"attention": "reference", "padded_to": {"1": 1}}])  # of a run that settled nothing
        assert wording(engine.report()["why_no_products"])
    with attached(model, graphs=True, **few) as engine:
        assert not asked
        engine.prepare(2)
        report = engine.report()
        weights = engine.code.weights()
        assert {(each["out"], each["in"]) for each in report["products"]} == {*weights}
        assert {each["kernel"] for each in report["products"]} == {"own"}
        # Of a layer the four products, and the LM head.
        assert sum(map(len, weights.values())) == 5
        asked.clear()
        assert autoregressive(engine, ids, TOKENS) == expected
        assert {rows for rows, *_ in asked} <= {*range(1, 17)}
        assert {tuple(shape) for _, *shape in asked} == {*weights}
    with attached(model, graphs=True, **few) as engine:
        engine.pad_as(report["steps"], [{**each, "kernel": "torch"} for each in report["products"]])
        asked.clear()
        assert autoregressive(engine, ids, TOKENS) == expected
        assert not asked
    with attached(model, graphs=True, **few) as engine:  # a draft head comes before anything is prepared
        shared, other = torch.ones(*(shape := next(iter(weights)))), torch.ones(24, 40)
        read.clear()
        by = engine.products({shape: [shared], (24, 40): [other]})
        assert {(each["out"], each["in"]) for each in engine.report()["products"]} == {*weights, (24, 40)}
        assert other.data_ptr() in read
        assert shared.data_ptr() not in read, "the target's weights of that shape are more, and no cache holds them"
        asked.clear()
        assert torch.equal(by(torch.ones(16, 40), other), torch.full((16, 24), 40.0))
        by(torch.ones(17, 40), other)
        assert asked == [(16, 24, 40)]
