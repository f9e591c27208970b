"""Checkpoints of published diffusion models give the scores that a forward written from their own names gives."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.models import attached, byte_tokenizer
from support.wording import wording
from torch import Tensor
from torch.nn.functional import silu

from specbench.common.errors import UsageError
from specbench.models import configured_parameters, configured_shape, export_hf, names, resolve
from specbench.models.loader import load
from specbench.profiling.shape import shape_of

HIDDEN, LAYERS, HEADS, INNER, VOCAB = 32, 2, 4, 48, 300
IDS = torch.tensor([[7, 250, 31, 31, 4, 99, 180, 2, 64]])

_QWEN = {
    "attention_dropout": 0.0, "eos_token_id": 1, "hidden_act": "silu", "hidden_size": HIDDEN, "initializer_range": 0.02,
    "intermediate_size": INNER, "max_position_embeddings": 512, "max_window_layers": LAYERS, "rms_norm_eps": 1e-6,
    "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "num_key_value_heads": 2, "rope_scaling": None,
    "rope_theta": 1e6, "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "use_cache": True, "use_sliding_window": False, "vocab_size": VOCAB,
}  # fmt: skip
_QWEN_NAMES = {
    "embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head", "layer": "model.layers.{}.",
    "before": "input_layernorm", "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
    "o": "self_attn.o_proj", "after": "post_attention_layernorm", "gate": "mlp.gate_proj", "up": "mlp.up_proj",
    "down": "mlp.down_proj", "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
}  # fmt: skip


@dataclass(frozen=True)
class Published:
    """A layout as its repository publishes it.

    Attributes:
        mask: id of the mask token, at which the tokenizer has ``mask_token``.
    """

    config: dict[str, Any]
    mask: int
    predicts_next: bool
    names: dict[str, str] = field(default_factory=lambda: _QWEN_NAMES)
    eps: float = 1e-6
    theta: float = 1e6
    kv_heads: int = 2
    head: int = HIDDEN // HEADS
    bias: bool = False
    normed: bool = False
    mask_token: str = "<|MASK|>"
    tokenizer: dict[str, Any] = field(default_factory=lambda: {"tokenizer_class": "Qwen2Tokenizer"})


PUBLISHED = {
    "Fast_dLLM_Qwen": Published(
        {
            **_QWEN, "architectures": ["Fast_dLLM_QwenForCausalLM"], "model_type": "Fast_dLLM_Qwen", "bd_size": 32,
            "auto_map": {
                "AutoConfig": "configuration.Fast_dLLM_QwenConfig", "AutoModel": "modeling.Fast_dLLM_QwenModel",
                "AutoModelForCausalLM": "modeling.Fast_dLLM_QwenForCausalLM",
            },
            "conplemenrary_mask": True, "layer_types": ["full_attention"] * LAYERS, "transformers_version": "4.53.1",
        },
        mask=258, predicts_next=True, bias=True, mask_token="|<MASK>|",
    ),
    "Dream": Published(
        {
            **_QWEN, "architectures": ["DreamModel"], "model_type": "Dream", "mask_token_id": 258,
            "auto_map": {"AutoConfig": "configuration_dream.DreamConfig", "AutoModel": "modeling_dream.DreamModel"},
        },
        mask=258, predicts_next=True, bias=True,
        tokenizer={
            "tokenizer_class": "DreamTokenizer",
            "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        },
    ),
    "sdar": Published(
        {
            **_QWEN, "architectures": ["SDARForCausalLM"], "model_type": "sdar", "attention_bias": False,
            "head_dim": 16, "block_size": 4, "mask_token_id": 258,
            "auto_map": {
                "AutoConfig": "configuration_sdar.SDARConfig", "AutoModel": "modeling_sdar.SDARModel",
                "AutoModelForCausalLM": "modeling_sdar.SDARForCausalLM",
            },
        },
        mask=258, predicts_next=False, head=16, normed=True,
    ),
    "llada": Published(
        {
            "activation_type": "silu", "alibi": False, "alibi_bias_max": 8.0, "architectures": ["LLaDAModelLM"],
            "attention_dropout": 0.0, "attention_layer_norm": False, "attention_layer_norm_with_affine": True,
            "auto_map": {
                "AutoConfig": "configuration_llada.LLaDAConfig", "AutoModel": "modeling_llada.LLaDAModelLM",
                "AutoModelForCausalLM": "modeling_llada.LLaDAModelLM",
            },
            "bias_for_layer_norm": False, "block_group_size": 1, "block_type": "llama", "d_model": HIDDEN,
            "embedding_dropout": 0.0, "embedding_size": VOCAB, "eos_token_id": 1, "flash_attention": False,
            "include_bias": False, "include_qkv_bias": False, "init_cutoff_factor": None, "init_device": "meta",
            "init_fn": "mitchell", "init_std": 0.02, "input_emb_norm": False, "layer_norm_type": "rms",
            "layer_norm_with_affine": True, "mask_token_id": 258, "max_sequence_length": 512, "mlp_hidden_size": INNER,
            "mlp_ratio": 4, "model_type": "llada", "multi_query_attention": None, "n_heads": HEADS, "n_kv_heads": HEADS,
            "n_layers": LAYERS, "pad_token_id": 1, "precision": "amp_bf16", "residual_dropout": 0.0,
            "rms_norm_eps": 1e-5, "rope": True, "rope_full_precision": True, "rope_theta": 5e5, "scale_logits": False,
            "transformers_version": "4.46.3", "use_cache": False, "vocab_size": VOCAB, "weight_tying": False,
        },
        mask=258, predicts_next=False, eps=1e-5, theta=5e5, kv_heads=HEADS,
        names={
            "embed": "model.transformer.wte", "norm": "model.transformer.ln_f", "head": "model.transformer.ff_out",
            "layer": "model.transformer.blocks.{}.", "before": "attn_norm", "q": "q_proj", "k": "k_proj", "v": "v_proj",
            "o": "attn_out", "after": "ff_norm", "gate": "ff_proj", "up": "up_proj", "down": "ff_out",
        },
        tokenizer={"tokenizer_class": "PreTrainedTokenizerFast"},
    ),
}  # fmt: skip


def weights(of: Published) -> dict[str, Tensor]:
    """Random weights under the published names."""
    draw = torch.Generator().manual_seed(3)
    q, kv = HEADS * of.head, of.kv_heads * of.head
    sizes = {"q": (q, HIDDEN), "k": (kv, HIDDEN), "v": (kv, HIDDEN), "o": (HIDDEN, q), "gate": (INNER, HIDDEN),
             "up": (INNER, HIDDEN), "down": (HIDDEN, INNER)}  # fmt: skip

    def random(*shape: int, mean: float = 0.0) -> Tensor:
        return mean + torch.randn(shape, generator=draw) / 4

    made = {f"{of.names[part]}.weight": random(VOCAB, HIDDEN) for part in ("embed", "head")}
    made[f"{of.names['norm']}.weight"] = random(HIDDEN, mean=1)
    for at in range(LAYERS):
        prefix = of.names["layer"].format(at)
        made |= {f"{prefix}{of.names[part]}.weight": random(*shape) for part, shape in sizes.items()}
        made |= {f"{prefix}{of.names[part]}.weight": random(HIDDEN, mean=1) for part in ("before", "after")}
        if of.bias:
            made |= {f"{prefix}{of.names[part]}.bias": random(sizes[part][0]) for part in "qkv"}
        if of.normed:
            made |= {f"{prefix}{of.names[part]}.weight": random(of.head, mean=1) for part in ("q_norm", "k_norm")}
    return made


def scores(of: Published, held: dict[str, Tensor], ids: Tensor) -> Tensor:
    """A causal forward in float64, from the published names alone."""
    held = {name: tensor.double() for name, tensor in held.items()}

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + of.eps).sqrt() * held[f"{name}.weight"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ held[f"{name}.weight"].T + held.get(f"{name}.bias", torch.zeros(()))

    length = ids.shape[1]
    angles = torch.arange(length)[:, None] / of.theta ** (torch.arange(0, of.head, 2).double() / of.head)
    cos, sin = (torch.cat((part, part), -1) for part in (angles.cos(), angles.sin()))

    def turned(x: Tensor) -> Tensor:  # heads, length, head
        one, two = x.chunk(2, -1)
        return x * cos + torch.cat((-two, one), -1) * sin

    x = held[f"{of.names['embed']}.weight"][ids[0]]
    for at in range(LAYERS):
        own = {part: of.names["layer"].format(at) + name for part, name in of.names.items()}
        y = norm(x, own["before"])
        q, k, v = (linear(y, own[part]).view(length, -1, of.head).transpose(0, 1) for part in "qkv")
        if of.normed:
            q, k = norm(q, own["q_norm"]), norm(k, own["k_norm"])
        k, v = (each.repeat_interleave(HEADS // of.kv_heads, 0) for each in (turned(k), v))
        seen = turned(q) @ k.transpose(1, 2) / math.sqrt(of.head)
        seen = seen.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf).softmax(-1)
        x = x + linear((seen @ v).transpose(0, 1).reshape(length, -1), own["o"])
        y = norm(x, own["after"])
        x = x + linear(silu(linear(y, own["gate"])) * linear(y, own["up"]), own["down"])
    return linear(norm(x, of.names["norm"]), of.names["head"])


def tokenizer_files(of: Published, folder: Path) -> None:
    """Write the files of a published tokenizer: those of Qwen2's kind have no tokenizer.json."""
    byte_tokenizer().save_pretrained(folder)
    file = folder / "tokenizer.json"
    symbols = json.loads(file.read_text())["model"]["vocab"]
    added = {"content": of.mask_token, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
             "special": True}  # fmt: skip
    if of.tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast":
        found = json.loads(file.read_text())
        found["added_tokens"].append({"id": of.mask, **added})
        file.write_text(json.dumps(found))
    else:
        file.unlink()
        (folder / "vocab.json").write_text(json.dumps(symbols))
        (folder / "merges.txt").write_text("#version: 0.2\n")
    own = {**of.tokenizer, "eos_token": "</s>", "pad_token": "</s>", "added_tokens_decoder": {str(of.mask): added}}
    (folder / "tokenizer_config.json").write_text(json.dumps(own))


def checkpoint(kind: str, folder: Path, **changes: Any) -> Path:
    """Write a tiny checkpoint; a change to None removes the field of its config.json."""
    of = PUBLISHED[kind]
    folder.mkdir()
    config = {name: value for name, value in {**of.config, **changes}.items() if changes.get(name, "") is not None}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights(of), folder / "model.safetensors")
    tokenizer_files(of, folder)
    return folder


@pytest.mark.parametrize("kind", PUBLISHED)
def test_scores_are_those_of_the_published_names(kind: str, tmp_path: Path) -> None:
    of = PUBLISHED[kind]
    folder = checkpoint(kind, tmp_path / kind)
    # The folder has no code, which the flag would run.
    for trust in (False, True):
        loaded = load(str(folder), dtype="float32", trust_remote_code=trust)
        torch.testing.assert_close(
            loaded.model(IDS).logits[0].double(), scores(of, weights(of), IDS), rtol=0, atol=2e-4
        )
    config = loaded.model.config
    assert (config.mask_token_id, config.predicts_next) == (of.mask, of.predicts_next)
    assert loaded.tokenizer.convert_ids_to_tokens(of.mask) == of.mask_token
    assert (loaded.context, 1 in loaded.stop_ids) == (512, True)
    with attached(loaded.model, capacity=40, max_rows=8) as engine:
        assert configured_shape(resolve(str(folder)), "float32") == shape_of(engine)


@pytest.mark.parametrize("kind", PUBLISHED)
def test_an_export_has_the_familys_names(kind: str, tmp_path: Path) -> None:
    loaded = load(str(checkpoint(kind, tmp_path / kind)), dtype="float32")
    export_hf(loaded, tmp_path / "out", dtype="float32")
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == set(loaded.model.state_dict())
    again = load(str(tmp_path / "out"), dtype="float32")
    assert torch.equal(again.model(IDS).logits, loaded.model(IDS).logits)
    assert again.spec.fingerprint == loaded.spec.fingerprint
    for name in ("mask_token_id", "predicts_next"):
        assert getattr(again.model.config, name) == getattr(loaded.model.config, name)


def test_dummy_weights_have_a_published_layout(tmp_path: Path) -> None:
    for kind, of in PUBLISHED.items():
        file = checkpoint(kind, tmp_path / kind) / "config.json"
        loaded = load(f"config:{file}")
        assert loaded.spec.parameters == sum(tensor.numel() for tensor in weights(of).values())
        assert loaded.model.config.predicts_next == of.predicts_next


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llada", {"d_model": None}),
        ("llada", {"n_layers": "two"}),
        ("llada", {"rope": False}),
        ("llada", {"block_type": "sequential"}),
        ("llada", {"include_qkv_bias": True}),
        ("llada", {"n_heads": 8, "n_kv_heads": 2}),
        ("sdar", {"head_dim": 8}),
        ("Dream", {"hidden_size": 48}),
    ],
)
def test_other_configurations_are_refused(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=wording):
        load(str(checkpoint(kind, tmp_path / "own", **changes)))


@pytest.mark.parametrize("kind", PUBLISHED)
def test_missing_weights_are_refused(kind: str, tmp_path: Path) -> None:
    folder = checkpoint(kind, tmp_path / "own")
    held = weights(PUBLISHED[kind])
    del held[PUBLISHED[kind].names["layer"].format(1) + PUBLISHED[kind].names["down"] + ".weight"]
    save_file(held, folder / "model.safetensors")
    with pytest.raises(UsageError, check=wording):
        load(str(folder))


def test_a_tokenizer_without_the_mask_token_is_refused(tmp_path: Path) -> None:
    folder = checkpoint("Fast_dLLM_Qwen", tmp_path / "own")
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "added_tokens_decoder": {}}))
    with pytest.raises(UsageError, check=wording):
        load(str(folder))


def test_experts_of_sdar_are_those_of_qwen3(tmp_path: Path) -> None:
    file = tmp_path / "experts.json"
    own = json.loads(names.configs()["qwen3-30b-a3b"].read_text())
    file.write_text(json.dumps({**own, "model_type": "sdar_moe"}))
    assert configured_parameters(file) == configured_parameters(names.configs()["qwen3-30b-a3b"])


def test_the_revision_of_a_snapshot_is_recorded(tmp_path: Path) -> None:
    snapshots = tmp_path / "snapshots"
    snapshots.mkdir()
    assert load(str(checkpoint("sdar", snapshots / ("a" * 40)))).spec.revision == "a" * 40
