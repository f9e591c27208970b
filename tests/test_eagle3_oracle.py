"""The oracle of EAGLE-3 heads: its files, its scores and its trees, and transformers' layers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.oracles import PRODUCERS, dense, expand, taps, write_head
from torch import Tensor
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding

VOCAB, HIDDEN, LAYERS = 97, 32, 8
TOKENS = [3, 50, 7, 7, 91, 20, 64]

_generator = torch.Generator().manual_seed(5)
# Made up: the oracle takes whatever a target computed. A layer's outputs grow from layer to layer, as in a model.
OUTPUTS = [(1 + at) * torch.randn(len(TOKENS), HIDDEN, generator=_generator) for at in range(LAYERS)]
EMBEDDING = 0.3 * torch.randn(VOCAB, HIDDEN, generator=_generator)


def says(folder: Path, drafts: Sequence[int] = (11, 42, 42)) -> Tensor:
    features = torch.cat([OUTPUTS[layer] for layer in taps(folder, LAYERS)], dim=-1)
    return dense(folder, features, TOKENS, drafts, EMBEDDING)


def apart(one: Tensor, other: Tensor) -> list[float]:
    """Largest difference of each row; a token that only one of them drafts is as far apart as can be."""
    return (one - other).nan_to_num(0.0, torch.inf, torch.inf).abs().amax(-1).tolist()


# ------------------------------------------------------------------ what it says


@pytest.mark.parametrize("producer", PRODUCERS)
def test_it_says_log_probabilities_of_what_can_be_drafted(producer: str, tmp_path: Path) -> None:
    whole = producer == "deepspec"  # its heads have no map: all tokens can be drafted
    found = says(write_head(tmp_path, producer, **({"draft_vocab": VOCAB} if whole else {})))
    assert found.shape == (4, VOCAB)
    assert found.dtype == torch.float64
    assert (found.exp().sum(-1) - 1).abs().max() < 1e-12
    drafted = load_file(tmp_path / "model.safetensors")["t2d"]
    assert found.isfinite().equal(drafted.expand(4, -1))
    assert 0 < int(drafted.sum()) < VOCAB + whole
    assert min(apart(found[1:], found[:-1])) > 1e-3


def test_a_path_is_read_up_to_each_row(tmp_path: Path) -> None:
    """The scores after the beginning of a path do not depend on the rest of the path."""
    eagle, parallel = write_head(tmp_path / "a", "speculators"), write_head(tmp_path / "b", "peagle-speculators")
    for folder in (eagle, parallel):
        assert max(apart(says(folder)[:3], says(folder, (11, 42)))) < 1e-12
    assert apart(says(eagle), says(eagle, (11, 43, 42)))[2] > 1e-3
    assert apart(says(parallel), says(parallel, (12, 43, 44))) == [0.0] * 4  # it does not see its own drafts


# ------------------------------------------------------------------ files


@pytest.mark.parametrize("producer", PRODUCERS)
def test_each_producer_names_layers_in_its_own_way(producer: str, tmp_path: Path) -> None:
    assert taps(write_head(tmp_path, producer), 36) == (1, 17, 32)
    named = write_head(tmp_path, producer, ids=[2, 18, 33])
    assert taps(named, 36) == ((1, 17, 32) if producer.endswith("speculators") else (2, 18, 33))


def test_files_have_the_names_and_shapes_that_the_producers_write(tmp_path: Path) -> None:
    original = load_file(write_head(tmp_path / "o", "original") / "model.safetensors")
    assert {name: (*tensor.shape,) for name, tensor in original.items()} == {
        "fc.weight": (32, 96),
        "midlayer.hidden_norm.weight": (32,),
        "midlayer.input_layernorm.weight": (32,),
        "midlayer.post_attention_layernorm.weight": (32,),
        "midlayer.self_attn.q_proj.weight": (32, 64),
        "midlayer.self_attn.k_proj.weight": (16, 64),
        "midlayer.self_attn.v_proj.weight": (16, 64),
        "midlayer.self_attn.o_proj.weight": (32, 32),
        "midlayer.mlp.gate_proj.weight": (48, 32),
        "midlayer.mlp.up_proj.weight": (48, 32),
        "midlayer.mlp.down_proj.weight": (32, 48),
        "norm.weight": (32,),
        "lm_head.weight": (48, 32),
        "d2t": (48,),
        "t2d": (97,),
    }
    assert original["d2t"].dtype == torch.int64
    assert int(original["d2t"].abs().sum()) > 0
    assert original["t2d"].nonzero().flatten().equal(torch.arange(48) + original["d2t"])
    folder = write_head(
        tmp_path / "p", "peagle-speculators", layers=2, hidden=24, target_hidden=40, own_embedding=True, qk_norm=True,
        ids=[2, 3], fc_norm=True, maps=(),
    )  # fmt: skip
    wide = load_file(folder / "model.safetensors")
    shapes = {name: (*tensor.shape,) for name, tensor in wide.items()}
    assert shapes["fc.weight"] == (24, 80)
    assert shapes["mask_hidden"] == (1, 1, 80)
    assert shapes["fc_norm.1.weight"] == (40,)
    assert shapes["embed_tokens.weight"] == (97, 24)
    assert shapes["layers.1.self_attn.q_proj.weight"] == (32, 24)
    assert shapes["layers.1.self_attn.k_norm.weight"] == (8,)
    assert not {"d2t", "t2d", "layers.1.hidden_norm.weight"} & set(shapes)
    config = json.loads((folder / "config.json").read_text())
    assert config["target_hidden_size"] == 40
    assert config["mask_token_id"] == 95
    assert config["transformer_layer_config"]["model_type"] == "qwen3"


# ------------------------------------------------------------------ what others compute


@torch.inference_mode()
def test_its_layers_are_those_of_transformers(tmp_path: Path) -> None:
    """Attention, norms of queries and keys, MLP: of three layers of Qwen3, the first of which reads two vectors."""
    folder = write_head(tmp_path, "speculators", layers=3, qk_norm=True, norm_before_residual=True, fc_norm=True)
    tensors = {name: tensor.double() for name, tensor in load_file(folder / "model.safetensors").items()}
    config = Qwen3Config(
        hidden_size=HIDDEN, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        rms_norm_eps=0.02, rope_parameters={"rope_type": "default", "rope_theta": 1000.0}, attention_bias=False,
    )  # fmt: skip
    config._attn_implementation = "eager"
    count = len(TOKENS)
    turned = Qwen3RotaryEmbedding(config)(torch.zeros(1, 1, dtype=torch.float64), torch.arange(count)[None])
    mask = torch.full((1, 1, count, count), -torch.inf, dtype=torch.float64).triu(1)

    def norm(name: str, x: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], tensors[f"{name}.weight"], 0.02)

    features = [OUTPUTS[layer].double() for layer in (1, 3, 4)]
    fused = torch.cat([norm(f"fc_norm.{at}", each) for at, each in enumerate(features)], -1) @ tensors["fc.weight"].T
    rows = norm("layers.0.hidden_norm", fused)[None]
    embedded = norm("layers.0.input_layernorm", EMBEDDING[torch.tensor(TOKENS)].double())[None]
    for at in range(3):
        layer = Qwen3DecoderLayer(config, at).double()
        for name, parameter in layer.named_parameters():
            parameter.data = tensors[f"layers.{at}.{name}"]
        if at:
            out = layer(rows, attention_mask=mask, position_embeddings=turned)
            rows = out[0] if isinstance(out, tuple) else out
        else:
            rows = rows + layer.self_attn(torch.cat([embedded, rows], -1), turned, mask)[0]
            rows = rows + layer.mlp(layer.post_attention_layernorm(rows))
    logits = norm("norm", rows[0, -1]) @ tensors["lm_head.weight"].T
    drafted = torch.arange(48) + tensors["d2t"].long()
    assert (says(folder, ())[0, drafted] - logits.log_softmax(-1)).abs().max() < 1e-5  # its rotation is in float32


# ------------------------------------------------------------------ the tree

_BEHIND = {
    (): (0.5, 0.4, 0.1),
    (0,): (0.6, 0.32, 0.08),
    (1,): (0.7, 0.2, 0.1),
    (0, 0): (0.5, 0.4, 0.1),
    (1, 0): (0.9, 0.06, 0.04),
}


def test_a_tree_worked_out_by_hand() -> None:
    asked: list[tuple[int, ...]] = []

    def say(path: tuple[int, ...]) -> Tensor:
        asked.append(path)
        return torch.tensor(_BEHIND[path], dtype=torch.float64).log()

    # (2,) has 0.1, but is no one's second best; (0, 1) has 0.16, but two paths of its level have more.
    best = [(0,), (1,), (0, 0), (1, 0), (1, 0, 0), (0, 1), (0, 0, 0), (0, 0, 1), (1, 1), (1, 0, 1)]
    products = [0.5, 0.4, 0.3, 0.28, 0.252, 0.16, 0.15, 0.12, 0.08, 0.0168]
    found = expand(say, 2, 3, 100)
    assert [path for path, _ in found] == best
    assert torch.tensor([total for _, total in found]).exp().tolist() == pytest.approx(products)
    assert asked == [(), (0,), (1,), (0, 0), (1, 0)]
    assert expand(say, 2, 3, 7) == found[:6]  # the root is a row


@pytest.mark.parametrize(("width", "depth"), [(1, 4), (3, 3), (4, 2)])
def test_a_tree_of_a_head(width: int, depth: int, tmp_path: Path) -> None:
    folder = write_head(tmp_path, "original")

    def say(path: tuple[int, ...]) -> Tensor:
        return says(folder, path)[-1]

    whole = expand(say, width, depth, 1000)
    assert len({path for path, _ in whole}) == len(whole) == width + (depth - 1) * width**2
    for path, total in whole:
        each = says(folder, path)
        assert total == pytest.approx(sum(float(each[at, token]) for at, token in enumerate(path)))
    for budget in (2, 5, 9):
        kept = {path for path, _ in expand(say, width, depth, budget)}
        assert all(path[:-1] in kept | {()} for path in kept)


def test_what_cannot_be_drafted_is_in_no_tree() -> None:
    logp = torch.full((9,), -torch.inf)
    logp[[2, 5]] = torch.tensor([0.75, 0.25]).log()
    found = [path for path, _ in expand(lambda path: logp, 4, 2, 100)]
    assert sorted(found) == [(2,), (2, 2), (2, 5), (5,), (5, 2), (5, 5)]
