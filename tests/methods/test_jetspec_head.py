"""The draft head against a plain writing-down of it, its files, and the configurations it is published with."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from mutants import mutant
from safetensors.torch import load_file, save_file
from support.decoders import HIDDEN, TINY, head, plain, together
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.heads.block_config import BlockHeadConfig, build_target_layer_ids
from specbench.heads.block_head import BlockHead
from specbench.models import names

QWEN3_8B: dict[str, Any] = {
    **TINY,
    **{"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 5, "num_attention_heads": 32},
    **{"num_key_value_heads": 8, "head_dim": 128, "num_target_layers": 36, "block_size": 16, "vocab_size": 151936},
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33], "causal_head": True},
}


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_it_is_what_the_papers_describe(causal: bool) -> None:
    made = head(causal)
    for context in (0, 1, 7):
        generator = torch.Generator().manual_seed(context)
        taps = len(made.config.taps)
        features = torch.randn(context, taps * HIDDEN, dtype=torch.float64, generator=generator)
        block = torch.randn(6, HIDDEN, dtype=torch.float64, generator=generator)
        with torch.inference_mode():
            expected = plain(dict(made.named_parameters()), features, block, causal)
            found = together(made, features, block, causal)
            other = plain(dict(made.named_parameters()), features, block, not causal)
        # transformers makes the rotations in float32 and the norms too.
        assert (found - expected).abs().max() < 2e-5
        assert (other - expected).abs().max() > 1e-2  # or the mask would not matter here


# ------------------------------------------------------------------ configurations


def test_the_published_8b_head_is_the_one_for_its_target() -> None:
    published = BlockHeadConfig.from_json({**QWEN3_8B, "max_position_embeddings": 40960})
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in BlockHead(published).parameters()) == 1_048_626_432
    assert published.taps == (1, 9, 17, 25, 33)
    values = json.loads(names.configs()["qwen3-8b"].read_text(encoding="utf-8"))
    assert BlockHeadConfig.for_target(transformers.AutoConfig.for_model(**values), mask_token_id=151669) == published
    # (layers, taps) of the target: the layers that the published heads tap.
    tapped = {
        (36, 5): (1, 9, 17, 25, 33), (40, 5): (1, 10, 19, 28, 37), (64, 5): (1, 16, 31, 46, 61), (36, 1): (18,),
        (2, 5): (0,), (3, 5): (0, 1), (2, 1): (0,),
    }  # fmt: skip
    assert {sizes: build_target_layer_ids(*sizes) for sizes in tapped} == tapped


def test_parameters_have_the_published_names() -> None:
    layer = [
        *(f"self_attn.{name}_proj" for name in "qkvo"), *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
        *("self_attn.q_norm", "self_attn.k_norm", "input_layernorm", "post_attention_layernorm"),
    ]  # fmt: skip
    expected = {"fc.weight", "hidden_norm.weight", "norm.weight"}
    expected |= {f"layers.{index}.{name}.weight" for index in range(3) for name in layer}
    assert {name for name, _ in head().named_parameters()} == set(head().state_dict()) == expected


@pytest.mark.parametrize(
    ("about", "causal"),
    [
        ({"dflash_config": {"mask_token_id": 49, "causal_head": True}}, True),  # JetSpec
        ({"dflash_config": {"mask_token_id": 49, "causal": True}}, True),  # NeMo, vLLM
        ({"dflash_config": {"mask_token_id": 49}, "is_causal": True}, True),
        ({"dflash_config": None, "jetspec_config": {"mask_token_id": 49, "causal": True}}, True),
        ({"dflash_config": None, "mask_token_id": 49}, False),
        ({"dflash_config": {"mask_token_id": 49}}, False),  # DFlash
        ({"dflash_config": {"mask_token_id": 49, "causal_head": False}}, False),
        ({"block_size": None, "dflash_config": {"mask_token_id": 49, "block_size": 6}}, False),
        ({"rope_theta": 5000, "rope_scaling": {"type": "linear", "factor": 2.0}}, True),
        ({"rope_theta": None, "rope_parameters": {"rope_type": "linear", "rope_theta": 5000, "factor": 2.0}}, True),
    ],
)
def test_every_spelling_of_a_configuration_is_read(about: dict[str, Any], causal: bool) -> None:
    made = BlockHeadConfig.from_json({**TINY, **about})
    assert (made.causal, made.mask_token_id, made.block_size) == (causal, 49, 6)
    assert BlockHeadConfig.from_json(made.to_json()) == made
    assert BlockHeadConfig.from_json({**TINY, **about, "num_target_layers": None}, 12) == made
    assert BlockHeadConfig.from_json({**TINY, **about, "draft_vocab_size": 50}) == made  # all of them
    if about.keys() & {"rope_scaling", "rope_parameters"}:
        assert made.rope == {"rope_type": "linear", "rope_theta": 5000, "factor": 2.0}
        assert BlockHead(made).get_buffer("rotary_emb.inv_freq")[0] == 0.5


@pytest.mark.parametrize(
    "about",
    [
        {"num_target_layers": None},
        {"hidden_size": None, "block_size": None},
        {"dflash_config": {}},
        {"target_layer_ids": [1, 11]},
        {"target_layer_ids": [1, 12]},
        {"block_size": 1},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        {"layer_types": ["sliding_attention"] * 3, "sliding_window": 4, "dflash_config": {"mask_token_id": 4}},
    ],
)
def test_what_no_pass_can_run_is_refused(about: dict[str, Any]) -> None:
    with pytest.raises(UsageError, check=wording):
        BlockHeadConfig.from_json({**TINY, **about})


# ------------------------------------------------------------------ files


def target(**other: Any) -> Any:
    return transformers.Qwen3Config(**{"hidden_size": HIDDEN, "num_hidden_layers": 12, "vocab_size": 50, **other})


def test_a_saved_head_comes_back(tmp_path: Path) -> None:
    made = head()
    made.save(tmp_path / "a" / "b")
    for where, wanted in ((tmp_path / "a" / "b", None), (f"{tmp_path / 'a'}::b", torch.bfloat16)):
        again = BlockHead.load(where, target(), dtype=wanted)
        assert again.config == made.config
        assert again.dtype == (wanted or torch.float64)
        for name, value in made.state_dict().items():
            assert torch.equal(again.state_dict()[name], value.to(again.dtype)), name
        assert torch.equal(*(each.get_buffer("rotary_emb.inv_freq") for each in (again, made)))
    assert json.loads((tmp_path / "a" / "b" / "config.json").read_text())["dflash_config"]["causal_head"] is True


def test_another_targets_head_is_refused(tmp_path: Path) -> None:
    head().save(tmp_path)
    _few(list(range(60))).save(tmp_path / "few")
    for folder, config in (
        (tmp_path, target(hidden_size=32)),
        (tmp_path, target(num_hidden_layers=8)),
        (tmp_path, target(vocab_size=49)),
        (tmp_path / "few", target()),
        (tmp_path / "nothing", target()),
        ("no-such-head", target()),
    ):
        with pytest.raises(UsageError, check=wording):
            BlockHead.load(folder, config)


def test_files_that_are_no_head_are_refused(tmp_path: Path) -> None:
    head().save(tmp_path)
    file = tmp_path / "model.safetensors"
    whole = load_file(file)

    def refused() -> None:
        with pytest.raises(UsageError, check=wording) as caught:
            BlockHead.load(tmp_path)
        assert "\n" not in str(caught.value)

    save_file({name: value for name, value in whole.items() if name != "fc.weight"}, file)
    refused()
    save_file({**whole, "lm_head.weight": torch.zeros(1)}, file)
    refused()
    save_file({**whole, "norm.weight": torch.zeros(3)}, file)
    refused()
    file.write_bytes(b"no tensors")
    refused()
    file.unlink()
    refused()


@pytest.mark.parametrize(("file", "form"), [("config.json", "json"), ("model.safetensors", "binary")])
def test_a_damaged_head_is_a_head_or_a_sentence(tmp_path: Path, file: str, form: str) -> None:
    head().save(tmp_path)
    good = (tmp_path / file).read_bytes()
    for at in range(60):
        (tmp_path / file).write_bytes(mutant(random.Random(at), good, form))
        result = "a head"
        try:
            BlockHead.load(tmp_path, target())
        except UsageError as error:
            result = str(error)
        assert result.isprintable(), at
        assert len(result) < 1000, at


def _few(ids: list[int]) -> BlockHead:
    made = BlockHead.random(replace(BlockHeadConfig.from_json(TINY), draft_vocab_size=len(ids)))
    made.set_draft_ids(torch.tensor(ids))
    return made


def test_a_head_of_few_tokens_scores_their_rows_alone(tmp_path: Path) -> None:
    ids = [2, 3, 17, 49]
    _few(ids).save(tmp_path)
    assert load_file(tmp_path / "model.safetensors")["d2t"].tolist() == [2, 2, 15, 46]  # as in EAGLE-3's files
    found = BlockHead.load(tmp_path, dtype=torch.bfloat16)
    assert found.dtype is torch.bfloat16
    assert found.draft_ids is not None
    assert found.draft_ids.tolist() == ids
    lm_head = torch.nn.Linear(24, 50, bias=True)
    states = torch.randn(3, 24)
    torch.testing.assert_close(found.scorer(lm_head)(states), lm_head(states)[:, ids])


def test_a_large_head_goes_in_several_files(tmp_path: Path) -> None:
    made = head()
    made.save(tmp_path, dtype=torch.float32, largest="10KB")
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 1
    assert all(file.stat().st_size < 14_000 for file in files)
    again = BlockHead.load(tmp_path, target())
    assert all(torch.equal(again.state_dict()[name], value.float()) for name, value in made.state_dict().items())
