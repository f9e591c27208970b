"""EAGLE's heads in each layout against an oracle: every score, every tree, each misreading, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import decoders
from support.decoders import alone
from support.level_rounds import Drafts, Round, Say, difference, rounds, said
from support.models import attached, autoregressive, before_norm, layer_outputs, prompt, tiny_llama
from support.oracles import expand, rms, rotated
from support.wording import wording
from torch import Tensor

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.common.errors import UsageError
from specbench.engine import graphs
from specbench.engine.sampler import Sampling
from specbench.heads.convert import convert
from specbench.methods.eagle.config import HeadConfig
from specbench.methods.eagle.head import DraftHead
from specbench.planning.methods import make_method

VOCAB, HIDDEN, LAYERS = 17, 32, 4
PROMPTS = [prompt(length, VOCAB, length) for length in (1, 12)]
TREE = {"width": 3, "depth": 4, "budget": 20}
TOLERANCE, NOTICED = 1e-5, 1e-3
THETA, EPS = 1000.0, 0.02  # far from their defaults

#: Ways to misread a head.
WRONG: Mapping[str, str] = {
    "features": "the output of the last layer before the final norm",
    "second to last": "the output of the layer before the last",
    "order": "the hidden state before the embedding",
    "shift": "the embedding of the token whose hidden state this is",
    "position": "a draft at the position of the row that it hangs under",
    "first norm": "the layer's input is normalised, as in Llama",
    "second norm": "no norm before the MLP",
    "last norm": "the target's final norm before the LM head",
    "fed back": "normalised before it stands for a hidden state",
    "fed back fused": "the fused input is fed back",
    "residual": "the hidden state instead of the fused input",
    "bias": "fc's left out",
    "qkv bias": "left out",
    "eps": "1e-6",
    "theta": "10000",
    "scale": "attention without its scale",
    "activation": "gelu",
    "embedding": "the target's, though the file has one",
    "lm head": "the target's, though the file has one",
    "layers": "only the first",
    "further norm": "the second layer without its first norm",
    "look ahead": "rows see those after them",
}

#: Keys of each head, and the misreadings that show in it.
HEADS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "original": (
        "original",
        {},
        [
            *("features", "second to last", "order", "shift", "position", "first norm", "second norm", "last norm"),
            *("fed back", "fed back fused", "residual", "bias", "eps", "theta", "scale", "activation"),
        ],
    ),
    "original, bias without a key": ("original", {"key": None, "own_embedding": True}, ["bias", "embedding"]),
    "original, no bias": ("original", {"bias": False, "rope": "parameters"}, ["theta", "order"]),
    "Qwen2": ("original", {"qkv_bias": True}, ["qkv bias", "bias"]),
    "two layers": ("original", {"layers": 2, "bias": False}, ["layers", "further norm", "eps", "look ahead"]),
    "vLLM": ("vllm", {"bias": False, "key": None, "own_head": True}, ["lm head", "eps", "theta", "features"]),
    "speculators": ("speculators", {"bias": False}, ["theta", "eps", "order", "features", "fed back"]),
    "speculators of HASS": ("speculators", {"head_dim": 4}, ["bias", "theta", "first norm"]),
}


def write_head(folder: Path, layout: str = "original", **given: Any) -> Path:
    """Write a random head in a layout."""
    keys = {
        "bias": True, "key": True, "qkv_bias": False, "layers": 1, "own_embedding": False, "own_head": False,
        "rope": "theta", "head_dim": None, "seed": 0, **given,
    }  # fmt: skip
    generator = torch.Generator().manual_seed(keys["seed"])
    size = keys["head_dim"] or HIDDEN // 4

    def matrix(*shape: int) -> Tensor:
        return 0.15 * torch.randn(*shape, generator=generator)

    tensors = {"fc.weight": matrix(HIDDEN, 2 * HIDDEN)}
    tensors |= {"fc.bias": matrix(HIDDEN)} if keys["bias"] else {}
    for layer in range(keys["layers"]):
        for which, heads in (("q", 4), ("k", 2), ("v", 2)):
            name = f"layers.{layer}.self_attn.{which}_proj"
            tensors[f"{name}.weight"] = matrix(heads * size, HIDDEN)
            tensors |= {f"{name}.bias": 6 * matrix(heads * size)} if keys["qkv_bias"] else {}
        tensors[f"layers.{layer}.self_attn.o_proj.weight"] = matrix(HIDDEN, 4 * size)
        tensors |= {f"layers.{layer}.mlp.{which}_proj.weight": matrix(48, HIDDEN) for which in ("gate", "up")}
        tensors[f"layers.{layer}.mlp.down_proj.weight"] = matrix(HIDDEN, 48)
        for norm in ["post_attention_layernorm", *(["input_layernorm"] if layer else [])]:
            tensors[f"layers.{layer}.{norm}.weight"] = 1 + matrix(HIDDEN)
    tensors |= {"embed_tokens.weight": matrix(VOCAB, HIDDEN)} if keys["own_embedding"] else {}
    tensors |= {"lm_head.weight": matrix(VOCAB, HIDDEN)} if keys["own_head"] else {}
    sizes: dict[str, Any] = {
        "hidden_size": HIDDEN, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": keys["layers"], "vocab_size": VOCAB, "rms_norm_eps": EPS, "hidden_act": "silu",
        "model_type": "llama", "pad_token_id": 0,
    }  # fmt: skip
    sizes |= {"rope_parameters": {"rope_type": "default", "rope_theta": THETA}} if keys["rope"] != "theta" else {}
    sizes |= {"rope_theta": THETA} if keys["rope"] == "theta" else {}
    sizes |= {"head_dim": keys["head_dim"]} if keys["head_dim"] else {}
    config: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], **sizes}
    config |= {"bias": keys["bias"]} if keys["key"] is not None else {}
    config |= {"qkv_bias": True} if keys["qkv_bias"] else {}
    if layout == "vllm":
        overridden = {"rms_norm_eps": 1e-6, "truncated_vocab_size": VOCAB}
        config = {"architectures": ["EAGLEModel"], "model_type": "eagle", "model": sizes | overridden}
        config["rms_norm_eps"] = EPS
        tensors = {name if "lm_head" in name else f"model.{name}": tensor for name, tensor in tensors.items()}
    if layout == "speculators":
        config = {
            "architectures": ["EagleSpeculator", "LlamaDecoderLayer"], "speculators_model_type": "eagle",
            "fusion_bias": keys["bias"], "layernorms": False,
            "transformer_layer_config": sizes | {"num_hidden_layers": 32},
            "speculators_config": {"algorithm": "eagle", "verifier": {"name_or_path": "the/target"}},
        }  # fmt: skip
        names = (("fc.", "fusion_fc."), ("layers.0.", "transformer."))
        for old, new in names:
            tensors = {name.replace(old, new) if name.startswith(old) else name: t for name, t in tensors.items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


# ------------------------------------------------------------------ the oracle: float64, everything anew, no cache


@cache
def model() -> Any:
    return tiny_llama(VOCAB, num_hidden_layers=LAYERS, hidden_size=HIDDEN).double()


class Oracle:
    """A head from its files, by the description of the layouts."""

    def __init__(self, folder: Path, wrong: str = "") -> None:
        assert not wrong or wrong in WRONG
        self.wrong, self.weights = wrong, dict[str, Tensor]()
        for name, tensor in load_file(folder / "model.safetensors").items():
            short = name.removeprefix("model.").replace("fusion_fc", "fc").replace("transformer.", "layers.0.")
            self.weights[short] = tensor.double()
        self.theta = 10000.0 if wrong == "theta" else THETA
        self.eps = 1e-6 if wrong == "eps" else EPS
        count = sum(name.endswith("o_proj.weight") for name in self.weights)
        self.layers = 1 if wrong == "layers" else count

    def linear(self, name: str, x: Tensor) -> Tensor:
        out = x @ self.weights[f"{name}.weight"].T
        left_out = {"bias": "fc", "qkv bias": "self_attn"}.get(self.wrong, "no")
        if f"{name}.bias" in self.weights and left_out not in name:
            out = out + self.weights[f"{name}.bias"]
        return out

    def layer(self, at: int, inner: Tensor, residual: Tensor, positions: Tensor) -> Tensor:
        name = f"layers.{at}"
        size = self.weights[f"{name}.self_attn.q_proj.weight"].shape[0] // 4
        query, key, value = (
            self.linear(f"{name}.self_attn.{which}_proj", inner).unflatten(-1, (-1, size)) for which in "qkv"
        )
        query, key = (rotated(each, positions, self.theta) for each in (query, key))
        key, value = key.repeat_interleave(2, dim=1), value.repeat_interleave(2, dim=1)
        scores = torch.einsum("qhd,khd->hqk", query, key) / (1 if self.wrong == "scale" else size**0.5)
        if self.wrong != "look ahead":
            scores = scores.masked_fill(torch.ones_like(scores[0]).triu(1).bool(), -torch.inf)
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).flatten(1)
        out = residual + self.linear(f"{name}.self_attn.o_proj", mixed)
        normed = rms(out, self.weights[f"{name}.post_attention_layernorm.weight"], self.eps)
        normed = out if self.wrong == "second norm" else normed
        gate, up = (self.linear(f"{name}.mlp.{which}_proj", normed) for which in ("gate", "up"))
        act = torch.nn.functional.gelu(gate) if self.wrong == "activation" else gate * gate.sigmoid()
        return out + self.linear(f"{name}.mlp.down_proj", act * up)

    def outputs(self, embedded: Tensor, before: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(outputs, fused inputs), [n, H] each."""
        parts = [embedded, before]
        fused = self.linear("fc", torch.cat(parts[::-1] if self.wrong == "order" else parts, -1))
        ones = torch.ones(HIDDEN, dtype=torch.float64)
        inner = rms(fused, ones, self.eps) if self.wrong == "first norm" else fused
        out = self.layer(0, inner, before if self.wrong == "residual" else fused, positions)
        for at in range(1, self.layers):
            weight = self.weights[f"layers.{at}.input_layernorm.weight"]
            inner = out if self.wrong == "further norm" else rms(out, weight, self.eps)
            out = self.layer(at, inner, out, positions)
        return out, fused

    def say(self, each: Round) -> Say:
        return said(lambda path: self.dense(each, path))

    @torch.inference_mode()
    def dense(self, each: Round, path: Drafts) -> list[Tensor]:
        """Log-probabilities after the text and after each beginning of a path of drafts."""
        before, norm = each.features, model().model.norm.weight
        if self.wrong in ("features", "second to last"):
            layers = before_norm(model(), each.text[:-1])
            before = layers[-1 if self.wrong == "features" else -2]
        borrowed = self.wrong == "embedding" or "embed_tokens.weight" not in self.weights
        table = model().get_input_embeddings().weight if borrowed else self.weights["embed_tokens.weight"]
        borrowed = self.wrong == "lm head" or "lm_head.weight" not in self.weights
        lm_head = model().get_output_embeddings().weight if borrowed else self.weights["lm_head.weight"]
        text = each.text[:-1] if self.wrong == "shift" else each.text[1:]
        drafts = (each.text[-1], *path)[: len(path)] if self.wrong == "shift" else path
        positions = torch.arange(len(text) + len(path))
        if self.wrong == "position":
            positions[len(text) :] -= 1
        found = []
        for upto in range(len(path) + 1):
            ids = torch.tensor([*text, *drafts[:upto]])
            out, fused = self.outputs(table[ids].double(), before, positions[: len(ids)])
            last = rms(out, norm, 1e-6) if self.wrong == "last norm" else out
            found.append((last[-1] @ lm_head.T).log_softmax(-1))
            fed = {"fed back": rms(out, norm, 1e-6), "fed back fused": fused}.get(self.wrong, out)
            before = torch.cat([before, fed[-1:]])
        return found


def test_heads_show_all_misreadings() -> None:
    assert {wrong for *_, shown in HEADS.values() for wrong in shown} == set(WRONG)


@pytest.mark.parametrize("kind", HEADS)
def test_every_score_is_the_oracles_and_no_misread_heads(kind: str, tmp_path: Path) -> None:
    layout, keys, shown = HEADS[kind]
    folder = write_head(tmp_path, layout, **keys)
    seen = rounds("eagle", model(), PROMPTS, 6, head=str(folder), **TREE)
    assert any(len(path) == TREE["depth"] for each in seen for path in each.paths())
    for each in seen:
        own = layer_outputs(model(), torch.tensor([each.text[:-1]]))[-1][0]  # transformers': after the final norm
        assert (each.features - own).abs().max() < 1e-8
        say = Oracle(folder).say(each)
        assert difference(each, say) < TOLERANCE
        assert set(each.paths()[1:]) == {path for path, _ in expand(say, **TREE)}
    for wrong in shown:
        misread = Oracle(folder, wrong)
        assert any(difference(each, misread.say(each)) > NOTICED for each in seen), wrong


@pytest.mark.parametrize(
    "options", [{"tree": "chain", "depth": 5}, {"width": 1, "depth": 3}, {"tree": "static"}], ids=str
)
def test_chains_and_written_trees(options: dict[str, Any], tmp_path: Path) -> None:
    folder = write_head(tmp_path)
    written = {(0,), (1,), (2,), (3,), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (0, 0, 0)}
    written |= {(0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 0, 0), (0, 0, 0, 0)}
    written |= {(0, 0, 0, 1), (0, 0, 0, 2), (0, 0, 0, 0, 0), (0, 0, 0, 0, 1)}
    nodes = written if "tree" in options and options["tree"] == "static" else {(0,) * at for at in range(1, 6)}
    nodes = {node for node in nodes if len(node) <= options.get("depth", 6)}
    for each in rounds("eagle", model(), PROMPTS, 8, head=str(folder), **options):
        say = Oracle(folder).say(each)
        assert difference(each, say) < TOLERANCE
        ranks: list[Drafts] = [()]
        for path, parent in zip(each.paths()[1:], each.tree.parents[1:], strict=True):
            order = say(path[:-1]).argsort(descending=True).tolist()
            ranks.append((*ranks[parent], order.index(path[-1])))
        assert set(ranks[1:]) == nodes
        assert len(ranks) == 1 + len(nodes)


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"tree": "static"}, 26),
        ({"tree": "static", "depth": 2}, 13),
        ({"tree": "static", "width": 2, "depth": 2}, 7),  # 0 1 00 01 10 11
        ({"tree": "static", "budget": 8}, 8),
        ({"tree": "0 1 00 10 100"}, 6),
        ({"tree": "chain", "depth": 4}, 5),
        ({}, 60),
    ],
    ids=str,
)
def test_rows_of_a_tree(options: dict[str, Any], rows: int) -> None:
    assert make_method("eagle", "eagle", {"head": "random", **options}).max_rows == rows


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, seed=3)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("options", [{"tree": "chain"}, {"tree": "static"}, {"budget": 24, "width": 5}], ids=str)
def test_a_captured_round_drafts_what_an_eager_one_drafts_and_texts_are_ars(
    options: dict[str, Any], sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)
    prompts = [prompt(length, VOCAB, seed) for seed, length in enumerate((1, 23, 7))]
    found: list[Any] = []
    truth: list[list[int]] = []
    for captured in (False, True)[: 1 + sampling.greedy]:  # the recorder does not replay a step's noise
        with attached(model(), slots=3, capacity=50, max_rows=32, graphs=captured, sampling=sampling) as engine:
            method = decoders.ready(decoders.with_options("eagle", {"depth": 3, **options}), engine)
            records = decoders.served(engine, method, prompts, 14, 3)
            truth = truth or [autoregressive(engine, ids, 14) for ids in prompts]
        assert [record.output_ids for record in records] == truth
        found.append([(r.accepted_lengths, r.tree_rows, r.measures) for r in records])
    assert found[0] == found[-1]
    assert options == {"tree": "chain"} or max(max(lengths) for lengths, *_ in found[0]) > 1


def test_a_saved_head_is_the_same_head(tmp_path: Path) -> None:
    for at, (layout, keys, _) in enumerate(HEADS.values()):
        folder = write_head(tmp_path / f"{at}", layout, **keys)
        first = DraftHead.load(folder, model().config)
        first.save(folder / "again")
        again = DraftHead.load(folder / "again", model().config)
        assert first.config.to_json() | {"bias": None} == again.config.to_json() | {"bias": None}
        one, other = first.state_dict(), again.state_dict()
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


# ------------------------------------------------------------------ what is refused


def refusal(folder: Path, vocab: int = VOCAB, hidden: int = HIDDEN) -> str:
    other = tiny_llama(vocab, num_hidden_layers=2, hidden_size=hidden)
    with pytest.raises(UsageError) as refused:
        make_method("eagle", "eagle", {"head": str(folder), **TREE}).ready(alone(other, capacity=40))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def changed(folder: Path, config: dict[str, Any], change: Callable[[dict[str, Tensor]], object]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **config}))
    return folder


@pytest.mark.parametrize(
    ("config", "change", "named"),
    [
        ({}, lambda head: head.pop("fc.bias"), r"fc\.bias"),
        ({"bias": False}, lambda head: None, r"fc\.bias"),
        ({}, lambda head: head.pop("layers.0.mlp.up_proj.weight"), r"layers\.0\.mlp\.up_proj\.weight"),
        ({}, lambda head: head.update({"fc.weight": torch.zeros(HIDDEN, HIDDEN)}), r"fc\.weight.*\[32, 32\]"),
        ({}, lambda head: head.update({"layers.0.input_layernorm.weight": torch.ones(HIDDEN)}), "input_layernorm"),
        ({}, lambda head: head.update({"embed_layernorm.weight": torch.ones(HIDDEN)}), "embed_layernorm"),
        ({}, lambda head: head.update({"midlayer.mlp.up_proj.weight": torch.ones(2)}), "--method eagle3"),
        ({"eagle_config": {}}, lambda head: None, "--method eagle3"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, lambda head: None, "--method eagle3"),
        ({"speculators_model_type": "eagle3"}, lambda head: None, "--method eagle3"),
        ({"speculators_model_type": "mlp"}, lambda head: None, "mlp"),
        ({"block_size": 16}, lambda head: None, "--method jetspec"),
        ({"layernorms": True}, lambda head: None, "layernorms"),
        ({"add_para_norm": True}, lambda head: None, "add_para_norm"),
        ({"draft_vocab_size": 9}, lambda head: None, "draft_vocab_size"),
        ({"hidden_size": None}, lambda head: None, "hidden_size"),
        ({"layer_types": ["sliding_attention"], "sliding_window": 8}, lambda head: None, "sliding"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, lambda head: None, "dynamic"),
    ],
)
def test_files_that_are_no_eagle_head_are_refused(
    config: dict[str, Any], change: Callable[[dict[str, Tensor]], object], named: str, tmp_path: Path
) -> None:
    assert re.search(named, refusal(changed(write_head(tmp_path), config, change)))


def test_heads_of_other_targets_and_layers_are_refused(tmp_path: Path) -> None:
    folder = write_head(tmp_path)
    assert re.search("17.*19", refusal(folder, vocab=19))
    assert re.search("32.*40", refusal(folder, hidden=40))
    other = write_head(tmp_path / "qwen3", "speculators")
    values = json.loads((other / "config.json").read_text())
    inner = values["transformer_layer_config"] | {"model_type": "qwen3"}
    assert "qwen3" in refusal(changed(other, {"transformer_layer_config": inner}, lambda head: None))


def test_keys_that_speculators_leaves_out_are_llamas_defaults() -> None:
    config = HeadConfig.from_json({"speculators_model_type": "eagle", "transformer_layer_config": {}}, 4)
    found = config.hidden_size, config.intermediate_size, config.num_attention_heads, config.num_key_value_heads
    assert found == (4096, 11008, 32, 32)
    assert (config.vocab_size, config.rms_norm_eps, config.rope["rope_theta"]) == (32000, 1e-6, 1e4)
    assert (config.num_hidden_layers, config.taps, config.bias) == (1, (4,), False)


def test_a_new_head_has_a_bias_by_default() -> None:
    shape = HeadConfig.for_target(model().config)
    heads = [DraftHead(replace(shape, bias=bias)) for bias in (True, None, False)]
    assert [head.fc.bias is not None for head in heads] == [True, True, False]


def test_a_pickle_is_converted(tmp_path: Path) -> None:
    folder = write_head(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert f"python -m specbench.heads.convert {folder}" in refusal(folder)
    convert(folder)
    assert DraftHead.load(folder, model().config).state_dict().keys() == tensors.keys()


def test_trees_that_are_none_are_refused() -> None:
    for tree in ("dynamics", "0 00 10", "0 0"):
        with pytest.raises(UsageError, check=wording):
            make_method("eagle", "eagle", {"head": "random", "tree": tree})


def test_a_tree_of_which_nothing_fits_is_refused() -> None:
    with pytest.raises(UsageError, check=wording):
        _ = make_method("eagle", "eagle", {"head": "random", "tree": "1", "width": 1}).max_rows
