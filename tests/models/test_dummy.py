"""Random weights whose rounding grows no more than that of trained ones, and whose texts still vary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from specbench.models import load
from specbench.models.dummy import steady

SIZES: dict[str, Any] = {
    "vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 36, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "intermediate_size": 512, "max_position_embeddings": 256, "initializer_range": 0.08,
    "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
FEW: dict[str, Any] = {"num_hidden_layers": 8}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "untied": ("Qwen3Config", "Qwen3ForCausalLM", {}),
    "tied": ("Qwen3Config", "Qwen3ForCausalLM", {"tie_word_embeddings": True}),
    "norms on both sides": ("Gemma3TextConfig", "Gemma3ForCausalLM", {**FEW, "tie_word_embeddings": True}),
    "experts": ("MixtralConfig", "MixtralForCausalLM", {**FEW, "num_local_experts": 4, "tie_word_embeddings": True}),
    "layer norms": (
        "GPT2Config", "GPT2LMHeadModel", {"n_embd": 256, "n_layer": 8, "n_head": 4, **FEW, "tie_word_embeddings": True},
    ),
}  # fmt: skip


def random_weights(family: str, dtype: torch.dtype = torch.bfloat16) -> Any:
    config, name, options = FAMILIES[family]
    torch.manual_seed(0)
    found = getattr(transformers, name)(getattr(transformers, config)(**{**SIZES, **options}))
    return found.to(dtype).eval()


@torch.inference_mode()
def scores(model: Any, attention: str) -> torch.Tensor:
    ids = torch.randint(0, 1000, (2, 100), generator=torch.Generator().manual_seed(1))
    model.set_attn_implementation(attention)
    found: torch.Tensor = model(input_ids=ids, use_cache=False).logits.float()
    return found


def noise(model: Any) -> tuple[float, float]:
    """Relative distance of the scores by two attentions, and the share of positions whose best token differs."""
    first, second = scores(model, "sdpa"), scores(model, "eager")
    off = (first - second).norm(dim=-1) / first.norm(dim=-1)
    return float(off.median()), float((first.argmax(-1) != second.argmax(-1)).float().mean())


@pytest.mark.parametrize("family", ["untied", pytest.param("tied", marks=pytest.mark.slow)])
def test_two_orders_of_the_same_sums_stay_together(family: str) -> None:
    model = random_weights(family)
    before, ties = noise(model)
    assert before > 0.03  # as large as what a check of the forward allows
    assert ties > 0.05
    size = scores(model, "sdpa").std()
    steady(model)
    after, ties = noise(model)
    assert after < 0.015
    assert ties < 0.03
    assert 0.5 < scores(model, "sdpa").std() / size < 2  # so that a temperature means what it meant


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_texts_vary_and_depend_on_what_is_before(family: str) -> None:
    model = random_weights(family, torch.float32)
    words = model.get_input_embeddings().weight.clone()
    steady(model)
    assert not torch.equal(model.get_input_embeddings().weight, words)
    tied = model.config.get_text_config().tie_word_embeddings
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied
    prompts = torch.tensor([[3, 14, 15, 92, 65], [2, 71, 82, 81, 65]])  # that end alike
    found = model.generate(prompts, max_new_tokens=30, do_sample=False, pad_token_id=0)[:, 5:].tolist()
    assert found[0] != found[1]
    assert min(len(set(text)) for text in found) >= 8


def test_a_configuration_gets_such_weights(tmp_path: Path) -> None:
    file = tmp_path / "deep.json"
    file.write_text(json.dumps({"model_type": "qwen3", **SIZES}), encoding="utf-8")
    first, second = (load(f"config:{file}", dtype="bfloat16", device="cpu").model for _ in range(2))
    assert noise(first)[0] < 0.015
    assert all(map(torch.equal, first.parameters(), second.parameters()))
