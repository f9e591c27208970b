"""A model that the engine would get wrong is refused with one sentence, and is itself again afterwards."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import models
from support.models import REFUSED, attached, autoregressive, build, decode, prompt, tiny_llama
from support.wording import wording

from specbench.decoding import TokenTree
from specbench.engine.attention import choice
from specbench.engine.attention.backends import ReferenceAttention
from specbench.engine.attention.interface import LayerAttention, Sight, UnsupportedAttention
from specbench.engine.attention.masks import Masks
from specbench.engine.cache import StaticCache
from specbench.engine.checks import forward, layer
from specbench.engine.engine import Engine
from specbench.engine.sampler import Sampling
from specbench.models.loader import load


@pytest.mark.parametrize("feature", list(REFUSED))
def test_a_feature_is_refused_by_name(feature: str) -> None:
    recipe, words = REFUSED[feature]
    model = build(recipe)
    native = model.config._attn_implementation
    before = own_logits(model)
    with pytest.raises(UnsupportedAttention) as refusal:
        Engine(model, capacity=64, max_rows=4)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert refusal.value.exit_code == 2
    assert model.config._attn_implementation == native
    torch.testing.assert_close(own_logits(model), before)


def own_logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([[3, 1, 4, 1, 5]])).logits


@pytest.mark.parametrize("feature", ["dynamic rope", "longrope", "learned positions"])
def test_a_length_limit_refuses_from_the_first_position_beyond_it(feature: str) -> None:
    model = build(REFUSED[feature][0])
    with attached(model, capacity=32, max_rows=6) as engine:  # the last trees hang over the end
        ids = prompt(20, 97)
        text = autoregressive(engine, ids, 12)
        assert decode(engine, ids, 12, lambda out: TokenTree.chain([*(text[len(out) - 1 :] + [5] * 6)[:6]])) == text
    whole = torch.tensor([ids + text[:-1]])
    with torch.inference_mode():
        assert model(whole).logits[0, 19:].argmax(-1).tolist() == text
    with pytest.raises(UnsupportedAttention, check=wording):
        Engine(model, capacity=33, max_rows=2)


def test_a_window_as_long_as_the_run_hides_nothing_and_is_not_asked_for() -> None:
    (config, model_name, options), _ = REFUSED["window in the mask only"]
    model = build((config, model_name, {**options, "sliding_window": 32}))
    with attached(model, capacity=28, max_rows=4):
        pass
    with pytest.raises(UnsupportedAttention, check=wording):
        Engine(model, capacity=29, max_rows=4)


class _WrongScale(ReferenceAttention):
    """An attention that ignores a model's own scale."""

    def __call__(self, query: Any, key: Any, value: Any, how: LayerAttention) -> Any:
        return super().__call__(query, key, value, replace(how, scale=1.3 * (how.scale or query.shape[-1] ** -0.5)))


class _SeesSiblings(ReferenceAttention):
    """An attention whose rows see all rows before them, as a causal kernel would."""

    def __init__(self, visibility: Any) -> None:
        super().__init__(visibility)
        rows = len(visibility.depth)
        self._masks = Masks(replace(visibility, rows=torch.ones(rows, rows).tril().bool()))


@pytest.mark.parametrize("wrong", [_WrongScale, _SeesSiblings])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_forward_is_found(wrong: type, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama(97).to(dtype)
    with attached(model, capacity=64, max_rows=4):
        pass
    monkeypatch.setattr(choice, "ReferenceAttention", wrong)
    with pytest.raises(UnsupportedAttention, check=wording):
        Engine(model, capacity=64, max_rows=4, native=False)


def test_a_cache_shorter_than_the_probe_is_no_reason_to_refuse() -> None:
    with attached(tiny_llama(97), capacity=1, max_rows=1) as engine:
        assert len(engine.prefill(engine.alloc(), [5]).emitted) == 1


def test_experts_that_flip_by_rounding_are_not_refused() -> None:
    for seed in range(4):
        model = build(models.SUPPORTED["mixtral"], seed).to(torch.bfloat16)
        with attached(model, capacity=64, max_rows=4):
            pass


def test_what_depends_on_the_length_is_served_before_it_sets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama 4 scales its queries from position 23 on, here by a length that its layers do not get."""
    monkeypatch.setattr(StaticCache, "get_seq_length", lambda *_: 0)
    config, name, options = models.SUPPORTED["llama4"]
    temperature = {"attn_temperature_tuning": True, "floor_scale": 24, "no_rope_layers": [1, 0, 1, 0]}
    everything = {"layer_types": ["full_attention"] * 4}
    model = build((config, name, {**options, **temperature, **everything}))
    with attached(model, capacity=23, max_rows=4) as engine:
        assert forward.far_lengths(model, 23)[-1] == 19
        text = engine.greedy(prompt(8, 97), 15)
    whole = torch.tensor([prompt(8, 97) + text[:-1]])
    with torch.inference_mode():
        assert model(whole).logits[0, 7:].argmax(-1).tolist() == text
    with pytest.raises(UnsupportedAttention, check=wording):
        Engine(model, capacity=24, max_rows=4)


class _DriftsFarOut(ReferenceAttention):
    """An attention that is right after short texts only."""

    def __call__(self, query: Any, key: Any, value: Any, how: LayerAttention) -> Any:
        far = 1.3 if int(self.visibility.lengths.max()) > 40 else 1.0
        return super().__call__(query, key, value, replace(how, scale=far * (how.scale or query.shape[-1] ** -0.5)))


def test_a_forward_that_is_wrong_far_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "ReferenceAttention", _DriftsFarOut)
    model = tiny_llama(97)
    with attached(model, capacity=40, max_rows=4, native=False):
        pass
    with pytest.raises(UnsupportedAttention, check=wording):
        Engine(model, capacity=80, max_rows=4, native=False)


@pytest.mark.parametrize("length", [1, 3, 20, 48, 100, 139])
def test_a_long_text_for_comparisons_is_a_short_one_repeated(length: int) -> None:
    with attached(tiny_llama(97), capacity=140, max_rows=4) as engine:
        stepper, cache = engine._eager, engine.cache
        slot = engine.alloc()
        engine.prefill(slot, [(53 * at + 7) % 97 for at in range(min(length, 48))])
        kept = [buffer[:, slot, :, : min(length, 48)].clone() for buffer in cache._buffers]
        engine.free(slot)
        with stepper.after_text(length) as slot:
            assert engine.length(slot) == length
            for buffer, real in zip(cache._buffers, kept, strict=True):
                found = buffer[:, slot, :, :length]
                at = [cell if cell < 48 else 4 + (cell - 48) % 44 for cell in range(length)]
                torch.testing.assert_close(found, real[:, :, at])
        assert all(not buffer[:, slot].any() for buffer in cache._buffers)


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [100, 208, 1024])
def test_a_real_model_in_bfloat16_runs_on_our_own_layers(capacity: int) -> None:
    model = load("smollm2-135m", dtype="bfloat16", device="cpu").model
    with attached(model, capacity=capacity, max_rows=8, native=True) as engine:
        assert engine.rounding <= forward.tolerance(torch.bfloat16)


@pytest.mark.parametrize("asked", ["crop", "get_max_cache_shape"])
def test_what_the_cache_does_not_answer_is_named(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama(97)
    attention = type(model.model.layers[0].self_attn)
    forward = attention.forward

    def asking(self: Any, *args: Any, past_key_values: Any = None, **named: Any) -> Any:
        if past_key_values is not None:
            getattr(past_key_values, asked)()
        return forward(self, *args, past_key_values=past_key_values, **named)

    monkeypatch.setattr(attention, "forward", asking)
    with pytest.raises(UnsupportedAttention, match=f"'{asked}'"):
        Engine(model, capacity=64, max_rows=4, native=False)


@functools.cache
def deep(family: str = "qwen3", **options: Any) -> Any:
    """A bfloat16 model so deep that two right orders of its sums are as far apart as the tolerance, or farther."""
    sizes: dict[str, Any] = {
        "vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 36, "intermediate_size": 768,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64, "initializer_range": 0.08,
    }  # fmt: skip
    config, name, own = models.SUPPORTED[family]
    model = build((config, name, {**own, **sizes, **options})).to(torch.bfloat16)
    model.set_attn_implementation("eager")
    return model


@pytest.mark.parametrize("native", [False, None], ids=["transformers", "own"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, seed=3)], ids=["greedy", "sampled"])
def test_a_deep_model_is_accepted(sampling: Sampling, native: bool | None) -> None:
    with attached(deep(), capacity=64, max_rows=8, sampling=sampling, native=native) as engine:
        assert engine.rounding < 0.15
        assert len(autoregressive(engine, prompt(6, 1000), 4)) == 4


def test_a_deep_model_is_judged_by_its_own_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a tolerance that no right order of its sums keeps to, whatever the machine."""
    monkeypatch.setitem(forward._TOLERANCE, torch.bfloat16, 0.025)
    with attached(deep(), capacity=64, max_rows=8, native=False) as engine:
        assert 0.025 < engine.rounding < 0.125
    monkeypatch.setattr(forward, "NOISE", 0.1)
    with pytest.raises(UnsupportedAttention, check=wording):
        Engine(deep(), capacity=64, max_rows=8, native=False)


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_scale_off_by_one_per_cent_is_found(family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(models.supported(family)).to(dtype)
    with attached(model, capacity=64, max_rows=4, native=False):
        pass
    monkeypatch.setattr(choice, "ReferenceAttention", _SlightlyWrongScale)
    with pytest.raises(UnsupportedAttention, check=wording):
        Engine(model, capacity=64, max_rows=4, native=False)


class _SlightlyWrongScale(ReferenceAttention):
    def __call__(self, query: Any, key: Any, value: Any, how: LayerAttention) -> Any:
        return super().__call__(query, key, value, replace(how, scale=1.01 * (how.scale or query.shape[-1] ** -0.5)))


class _IgnoresWindows(ReferenceAttention):
    def __call__(self, query: Any, key: Any, value: Any, how: LayerAttention) -> Any:
        return super().__call__(query, key, value, replace(how, sight=Sight()))


class _SeesOneMore(ReferenceAttention):
    """An attention whose windows are a token too wide."""

    def __call__(self, query: Any, key: Any, value: Any, how: LayerAttention) -> Any:
        window = how.sight.window
        return super().__call__(query, key, value, replace(how, sight=Sight(window and window + 1)))


@pytest.mark.parametrize("wrong", [_SlightlyWrongScale, _IgnoresWindows, _SeesOneMore, _SeesSiblings])
def test_noise_hides_no_attention_that_differs(wrong: type, monkeypatch: pytest.MonkeyPatch) -> None:
    model = deep("mistral", sliding_window=8)
    monkeypatch.setattr(choice, "ReferenceAttention", wrong)
    with pytest.raises(UnsupportedAttention, check=wording):
        Engine(model, capacity=64, max_rows=8, native=False)
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("wrong", [_IgnoresWindows, _SeesSiblings, _WrongScale])
def test_a_forward_beyond_the_ceiling_is_refused(wrong: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the whole forward alone, without the layers in float32."""
    monkeypatch.setattr(layer, "check_layers", lambda *_: None)
    monkeypatch.setattr(choice, "ReferenceAttention", wrong)
    with pytest.raises(UnsupportedAttention, check=wording):
        Engine(deep("mistral", sliding_window=8), capacity=64, max_rows=8, native=False)


def test_every_kind_of_layer_is_run_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[int, float]] = []
    difference = layer._difference

    def watched(layer: Any, index: int, *rest: Any) -> float:
        found.append((index, difference(layer, index, *rest)))
        return found[-1][1]

    monkeypatch.setattr(layer, "_difference", watched)
    for family, kinds in (("llama", [0]), ("gemma3", [0, 1]), ("gpt2", [0]), ("mixtral", [0]), ("phi3", [0])):
        model = copy.deepcopy(models.supported(family)).to(torch.bfloat16)
        weights = [each.clone() for each in model.parameters()]
        with attached(model, capacity=64, max_rows=4):
            pass
        assert [index for index, _ in found] == kinds
        assert max(off for _, off in found) < 1e-5
        assert all(map(torch.equal, weights, model.parameters()))
        assert {each.dtype for each in model.parameters()} == {torch.bfloat16}
        found.clear()


def test_layers_are_compared_in_whole_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever precision the process allows products of float32."""
    matmul: Any = torch.backends.cuda.matmul
    before, seen = matmul.fp32_precision, list[str]()

    def difference(*_: Any) -> float:
        seen.append(matmul.fp32_precision)
        return 0.0

    monkeypatch.setattr(layer, "_difference", difference)
    try:
        matmul.fp32_precision = "tf32"
        with attached(copy.deepcopy(models.supported("llama")).to(torch.bfloat16), capacity=64, max_rows=4):
            assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before
    assert seen == ["ieee"]
