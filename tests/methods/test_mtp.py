"""MTP layers in each layout against an own oracle and transformers' MtpModel, in an engine, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import decoders
from support.decoders import alone, eager
from support.level_rounds import Drafts, Round, Say, difference, rounds, said
from support.models import attached, autoregressive, before_norm, build, layer_outputs, prompt, supported, tiny_llama
from support.oracles import expand, rms, rotated
from torch import Tensor
from transformers.modeling_layers import MtpModel

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.common.errors import UsageError
from specbench.engine import graphs
from specbench.engine.heads import head_pass
from specbench.engine.sampler import Sampling
from specbench.methods.mtp.head import MtpConfig, MtpHead
from specbench.methods.mtp.layouts import LAYOUTS
from specbench.methods.mtp.loading import read
from specbench.planning.methods import make_method

VOCAB, HIDDEN, LAYERS = 19, 32, 3
PROMPTS = [prompt(length, VOCAB, length) for length in (2, 12)]
TREE: dict[str, Any] = {"tree": "dynamic", "width": 3, "depth": 4, "budget": 20}
TOLERANCE, NOTICED = 1e-5, 1e-3
EPS, THETA = 0.02, 1000.0

_MOE = {
    "vocab_size": VOCAB, "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "rms_norm_eps": EPS,
}  # fmt: skip
FAMILIES: Mapping[str, Any] = {
    "qwen2": (
        "Qwen2Config",
        "Qwen2ForCausalLM",
        {"vocab_size": VOCAB, "num_hidden_layers": LAYERS, "rms_norm_eps": EPS}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": THETA}},
    ),
    "glm4_moe": ("Glm4MoeConfig", "Glm4MoeForCausalLM", {**_MOE, "use_qk_norm": True}),
    "deepseek_v3": (
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        {**_MOE, "q_lora_rank": 16, "kv_lora_rank": 12, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12}
        | {"v_head_dim": 10, "num_key_value_heads": 4},
    ),
    "qwen3_next": (
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        {"vocab_size": VOCAB, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
        | {"shared_expert_intermediate_size": 16, "layer_types": ["linear_attention", "full_attention"]}
        | {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8}
        | {"linear_value_head_dim": 8, "mtp_layer_types": ["full_attention"], "num_mtp_layers": 1},
    ),
    "qwen3_5": (
        "Qwen3_5TextConfig",
        "Qwen3_5ForCausalLM",
        {"vocab_size": VOCAB, "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 4}
        | {"linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
        | {"mtp_layer_types": ["full_attention"], "num_mtp_layers": 1},
    ),
}


@cache
def model(family: str) -> Any:
    made = build(FAMILIES[family]).double()
    made.config._experts_implementation = "eager"  # grouped products need float32
    return made


#: Names of (norm of the embedding, norm of the hidden state, projection, last norm), the prefix, and the block's.
NAMES: Mapping[str, tuple[tuple[str, str, str, str], str, str]] = {
    "deepseek": (("enorm", "hnorm", "eh_proj", "shared_head.norm"), "model.layers.{depth}.", ""),
    "mimo": (("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"), "model.mtp_layers.{layer}.", ""),
    "qwen": (("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"), "mtp.", "layers.0."),
    "speculators": (
        ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"),
        "mtp_layers.{layer}.",
        "",
    ),
}


def checkpoint(folder: Path, family: str, layout: str, copies: bool = False, layers: int = 1, **config: Any) -> Path:
    """Write MTP layers of a target, with random weights, among a tensor of the target itself."""
    own, tensors = model(family), dict[str, Tensor]()
    for layer in range(layers):
        prefix = NAMES[layout][1].format(depth=own.config.num_hidden_layers + layer, layer=layer)
        tensors |= {prefix + name: tensor for name, tensor in parts(own, layout, copies, 3 + layer).items()}
    tensors["model.layers.0.input_layernorm.weight"] = torch.full([HIDDEN], 7.0)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"num_nextn_predict_layers": layers, **config}))
    save_file(tensors, folder / "model.safetensors")
    return folder


def parts(own: Any, layout: str, copies: bool, seed: int) -> dict[str, Tensor]:
    """Random tensors of one layer, without the prefix."""
    generator = torch.Generator().manual_seed(seed)

    def like(shape: torch.Size) -> Tensor:
        noise = torch.randn(shape, generator=generator)
        return 1 + 0.3 * noise if len(shape) == 1 else 0.3 * noise

    (embed_norm, hidden_norm, projection, norm), _, block = NAMES[layout]
    tensors = {f"{name}.weight": like(torch.Size([HIDDEN])) for name in (embed_norm, hidden_norm, norm)}
    tensors[f"{projection}.weight"] = like(torch.Size([HIDDEN, 2 * HIDDEN]))
    for name, weight in own.model.layers[-1].state_dict().items():
        if name.endswith("experts.gate_up_proj"):
            for at in range(len(weight)):
                for which in ("gate", "up"):
                    shape = torch.Size([weight.shape[1] // 2, weight.shape[2]])
                    tensors[block + name.replace("gate_up_proj", f"{at}.{which}_proj.weight")] = like(shape)
        elif name.endswith("experts.down_proj"):
            for at in range(len(weight)):
                tensors[block + name.replace("down_proj", f"{at}.down_proj.weight")] = like(weight.shape[1:])
        else:
            tensors[block + name] = like(weight.shape)
    if copies:
        tensors |= {"embed_tokens.weight": like(torch.Size([VOCAB, HIDDEN]))}
        tensors |= {"shared_head.head.weight": like(torch.Size([VOCAB, HIDDEN]))}
    return tensors


# ------------------------------------------------------------------ an own oracle, over a Qwen2


#: Ways to misread a layer.
WRONG: Mapping[str, str] = {
    "features": "the hidden state before the target's final norm",
    "second to last": "the output of the layer before the last",
    "order": "the projection's inputs swapped",
    "shift": "the embedding of the token whose hidden state this is",
    "position": "a draft at the position of the row that it hangs under",
    "zero": "the first row's embedding zeroed where it is not, and not where it is",
    "zero all": "the embedding of every row zeroed",
    "embedding norm": "left out",
    "hidden norm": "left out",
    "norms swapped": "each norm on the other input",
    "norm": "the last one left out",
    "target's norm": "the target's final norm in place of the layer's own",
    "fed back": "before the norm where it is after it, and the other way round",
    "fed back fused": "the projected input is fed back",
    "input norm": "the decoder layer's first norm left out",
    "residual": "the normalised input",
    "bias": "of queries, keys and values left out",
    "eps": "1e-6",
    "theta": "10000",
    "embedding": "the target's, though the file has one",
    "lm head": "the target's, though the file has one",
    "layer": "the target's last one",
}


class Oracle:
    """A layer from its file, by the description of the layouts: float64, everything anew, no cache."""

    def __init__(self, folder: Path, layout: str, wrong: str = "", layer: int = 0) -> None:
        assert not wrong or wrong in WRONG
        names, prefix, self.block = NAMES[layout]
        self.names = dict(zip(("embedding norm", "hidden norm", "fc", "norm"), names, strict=True))
        prefix = prefix.format(depth=LAYERS + layer, layer=layer)
        held = load_file(folder / "model.safetensors")
        self.weights = {k.removeprefix(prefix): v.double() for k, v in held.items() if k.startswith(prefix)}
        self.layout, self.wrong = layout, wrong
        if wrong == "layer":
            own = model("qwen2").model.layers[-1].state_dict()
            self.weights |= {self.block + name: weight for name, weight in own.items()}
        self.eps = 1e-6 if wrong == "eps" else EPS
        self.theta = 10000.0 if wrong == "theta" else THETA

    def normed(self, which: str, x: Tensor) -> Tensor:
        if self.wrong == "norms swapped" and which != "norm":
            which = {"embedding norm": "hidden norm", "hidden norm": "embedding norm"}[which]
        if self.wrong == which:
            return x
        if self.wrong == "target's norm" and which == "norm":
            return rms(x, model("qwen2").model.norm.weight, EPS)
        return rms(x, self.weights[f"{self.names[which]}.weight"], self.eps)

    def outputs(self, embedded: Tensor, before: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        zeroed = (self.layout in ("deepseek", "mimo")) != (self.wrong == "zero")
        if zeroed or self.wrong == "zero all":
            embedded = embedded.masked_fill((positions == 0)[:, None] | (self.wrong == "zero all"), 0)
        parts = [self.normed("embedding norm", embedded), self.normed("hidden norm", before)]
        first = (self.layout == "mimo") != (self.wrong == "order")
        fused = torch.cat(parts[::-1] if first else parts, -1) @ self.weights[f"{self.names['fc']}.weight"].T
        weights = {k.removeprefix(self.block): v for k, v in self.weights.items() if k.startswith(self.block)}
        inner = fused
        if self.wrong != "input norm":
            inner = rms(fused, weights["input_layernorm.weight"], self.eps)

        def heads(which: str) -> Tensor:
            name = f"self_attn.{which}_proj"
            out = inner @ weights[f"{name}.weight"].T + (self.wrong != "bias") * weights[f"{name}.bias"]
            return out.unflatten(-1, (-1, HIDDEN // 4))

        query, key = (rotated(heads(which), positions, self.theta) for which in "qk")
        key, value = key.repeat_interleave(2, dim=1), heads("v").repeat_interleave(2, dim=1)
        scores = torch.einsum("qhd,khd->hqk", query, key) / (HIDDEN // 4) ** 0.5
        scores = scores.masked_fill(torch.ones_like(scores[0]).triu(1).bool(), -torch.inf)
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).flatten(1)
        out = (inner if self.wrong == "residual" else fused) + mixed @ weights["self_attn.o_proj.weight"].T
        normed = rms(out, weights["post_attention_layernorm.weight"], self.eps)
        gate, up = (normed @ weights[f"mlp.{which}_proj.weight"].T for which in ("gate", "up"))
        return out + (gate * gate.sigmoid() * up) @ weights["mlp.down_proj.weight"].T, fused

    @torch.inference_mode()
    def dense(self, each: Round, path: Drafts) -> list[Tensor]:
        """Log-probabilities after the text and after each beginning of a path of drafts."""
        own, before = model("qwen2"), each.features
        if self.wrong in ("features", "second to last"):
            before = before_norm(own, each.text[:-1])[-1 if self.wrong == "features" else -2]
        held = {"embedding": "embed_tokens.weight", "lm head": "shared_head.head.weight"}
        tables = {"embedding": own.get_input_embeddings().weight, "lm head": own.get_output_embeddings().weight}
        tables |= {k: self.weights[n] for k, n in held.items() if n in self.weights and self.wrong != k}
        text = each.text[:-1] if self.wrong == "shift" else each.text[1:]
        drafts = (each.text[-1], *path)[: len(path)] if self.wrong == "shift" else path
        positions = torch.arange(len(text) + len(path))
        if self.wrong == "position":
            positions[len(text) :] -= 1
        found = []
        for upto in range(len(path) + 1):
            ids = torch.tensor([*text, *drafts[:upto]])
            out, fused = self.outputs(tables["embedding"][ids].double(), before, positions[: len(ids)])
            after = self.normed("norm", out[-1:])
            found.append((after[0] @ tables["lm head"].T).log_softmax(-1))
            fed = after if (self.layout != "deepseek") != (self.wrong == "fed back") else out[-1:]
            before = torch.cat([before, fused[-1:] if self.wrong == "fed back fused" else fed])
        return found

    def say(self, each: Round) -> Say:
        return said(lambda path: self.dense(each, path))


#: Misreadings that show in each layout; further ones where the file has an embedding and an LM head.
SHOWN: Mapping[str, list[str]] = {
    "deepseek": [*WRONG],
    "mimo": ["order", "zero", "fed back", "norms swapped", "norm", "features", "shift"],
    "qwen": ["order", "zero", "fed back", "eps", "theta", "bias", "input norm"],
    "speculators": ["order", "zero", "fed back", "hidden norm", "position"],
}


@pytest.mark.parametrize("layout", NAMES)
def test_every_score_is_the_oracles_and_no_misread_layers(layout: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, "qwen2", layout, copies=layout == "deepseek")
    seen = rounds("mtp", model("qwen2"), PROMPTS, 6, head=str(folder), **TREE)
    assert any(len(path) == 4 for each in seen for path in each.paths())
    sizes = {name: TREE[name] for name in ("width", "depth", "budget")}
    for each in seen:
        own = layer_outputs(model("qwen2"), torch.tensor([each.text[:-1]]))[-1][0]
        assert (each.features - own).abs().max() < 1e-8
        say = Oracle(folder, layout).say(each)
        assert difference(each, say) < TOLERANCE
        assert set(each.paths()[1:]) == {path for path, _ in expand(say, **sizes)}
    for wrong in SHOWN[layout]:
        misread = Oracle(folder, layout, wrong)
        assert any(difference(each, misread.say(each)) > NOTICED for each in seen), wrong


def test_layouts_are_those_that_are_tested() -> None:
    assert set(LAYOUTS) == set(NAMES) == set(SHOWN)


def test_a_chain_is_the_oracles(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, "qwen2", "mimo")
    for each in rounds("mtp", model("qwen2"), PROMPTS, 8, head=str(folder), depth=5):
        assert each.tree.is_chain
        say = Oracle(folder, "mimo").say(each)
        assert difference(each, say) < TOLERANCE
        path: Drafts = ()
        for token in each.tree.tokens[1:]:
            assert token == int(say(path).argmax())
            path = (*path, token)
        assert len(path) == 5


# ------------------------------------------------------------------ several layers


#: Ways to misread several layers.
WRONG_LAYERS: Mapping[str, str] = {
    "first": "the first layer repeated",
    "swapped": "the second and third layers swapped",
    "not rolled": "every layer reads the same tokens",
    "target": "every layer reads the target's hidden states",
    "row": "a draft token in a row of its own after the text",
    "fed": "before the norm where it is after it, and the other way round",
}


@torch.inference_mode()
def layered(folder: Path, layout: str, each: Round, path: Drafts, wrong: str = "") -> list[Tensor]:
    """Log-probabilities as :meth:`Oracle.dense`, where layer k runs over the whole text for the k-th draft token."""
    at = {"first": (0, 0, 0), "swapped": (0, 2, 1)}.get(wrong, (0, 1, 2))
    layers = [Oracle(folder, layout, "fed back" if wrong == "fed" else "", layer) for layer in at]
    own = model("qwen2")
    embed, head = own.get_input_embeddings().weight.double(), own.get_output_embeddings().weight.double()
    before, found, positions = each.features, [], torch.arange(len(each.text) - 1)
    for level, layer in enumerate(layers[: len(path) + 1]):
        tokens = [*each.text[1:], *path][0 if wrong == "not rolled" else level :][: len(positions)]
        if wrong == "row" and level:
            before = torch.cat([each.features, before[-1:]])
            tokens, positions = [*each.text[1:], path[level - 1]], torch.arange(len(each.text))
        out, _ = layer.outputs(embed[torch.tensor(tokens)], before, positions)
        found.append((layer.normed("norm", out[-1:])[0] @ head.T).log_softmax(-1))
        feeds_norm = (layout != "deepseek") != (wrong == "fed")
        before = each.features if wrong == "target" else layer.normed("norm", out) if feeds_norm else out
    return found


@pytest.mark.parametrize("layout", ["deepseek", "mimo", "speculators"])
def test_each_draft_token_comes_from_its_own_layer(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most drafts are wrong, so that last rows which a round does not compute anew are noticed."""
    monkeypatch.setattr(head_pass, "CHUNK", 5)  # rows of a prompt
    folder = checkpoint(tmp_path, "qwen2", layout, layers=3)
    prompts = [prompt(length, VOCAB, length) for length in (1, 2, 3, 14)]
    seen = rounds("mtp", model("qwen2"), prompts, 9, head=str(folder))
    assert {len(each.tree) for each in seen} == {4}
    noticed = dict.fromkeys(WRONG_LAYERS, 0.0)
    for each in seen:
        assert each.tree.is_chain
        say = said(lambda path, each=each: layered(folder, layout, each, path))
        assert difference(each, say) < TOLERANCE
        for wrong in WRONG_LAYERS:
            misread = said(lambda path, each=each, wrong=wrong: layered(folder, layout, each, path, wrong))
            noticed[wrong] = max(noticed[wrong], difference(each, misread))
    assert all(gap > NOTICED for gap in noticed.values()), noticed


@pytest.mark.parametrize("options", [{}, {"budget": 3}, {"verify": "block"}, {"depth": 5}], ids=str)
def test_texts_of_several_layers_are_ars(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(tmp_path, "qwen2", "mimo", layers=3)
    prompts = [prompt(length, VOCAB, seed) for seed, length in enumerate((1, 23, 7))]
    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)
    found: list[Any] = []
    for captured, sampling in ((False, Sampling(0.8, seed=3)), (False, Sampling()), (True, Sampling())):
        with attached(model("qwen2"), slots=3, capacity=50, max_rows=32, graphs=captured, sampling=sampling) as engine:
            method = decoders.ready(make_method("mtp", "mtp", {"head": str(folder), **options}), engine)
            found.append(decoders.served(engine, method, prompts, 14, 3))
            truth = [autoregressive(engine, ids, 14) for ids in prompts]
        if sampling.greedy or options.get("verify") != "block":  # whose texts have the target's distribution
            assert [record.output_ids for record in found[-1]] == truth
    for eager_record, record in zip(found[1], found[2], strict=True):
        assert eager_record.accepted_lengths == record.accepted_lengths


def test_the_first_of_several_layers_may_draft_alone(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, "qwen2", "mimo", layers=3)
    for each in rounds("mtp", model("qwen2"), PROMPTS, 6, head=str(folder), layers="first", depth=5):
        assert difference(each, Oracle(folder, "mimo").say(each)) < TOLERANCE
        assert len(each.tree) == 6


# ------------------------------------------------------------------ transformers' MtpModel, experts and MLA included


def theirs(family: str, folder: Path) -> Any:
    """transformers' layer of a checkpoint; its configuration is the target's."""
    own = model(family)
    own._keys_to_ignore_on_load_unexpected = [r"model\.layers\.2\.", r"mtp\."]  # published depths are listed there
    own.config._name_or_path, own.config.dtype = str(folder), torch.float64
    made = MtpModel.from_pretrained(own).double().eval()
    made.config._attn_implementation = "eager"
    return made


@torch.inference_mode()
def their_scores(mtp: Any, features: Tensor, text: list[int], path: Drafts, feed: str) -> list[Tensor]:
    """Log-probabilities as :meth:`Oracle.dense`."""
    layer, before, found = mtp.layers[0], features[None], []
    for upto in range(len(path) + 1):
        ids = torch.tensor([[*text[1:], *path[:upto]]])
        norm, layer.post_norm = layer.post_norm, torch.nn.Identity()
        out = mtp.forward_layer(0, before, torch.arange(ids.shape[1])[None], None, input_ids=ids)
        layer.post_norm = norm
        found.append(mtp.shared_head(norm(out[:, -1]))[0].log_softmax(-1))
        before = torch.cat([before, norm(out[:, -1:]) if feed == "norm" else out[:, -1:]], dim=1)
    return found


@pytest.mark.parametrize("feed", ["norm", "auto"])
@pytest.mark.parametrize("family", ["glm4_moe", "deepseek_v3"])
def test_experts_and_latent_attention_are_transformers(family: str, feed: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, family, "deepseek")
    # transformers does not zero the first row's embedding, so it is zero here in any case: that of the padding token.
    prompts = [[5, 0, 3], [7, 0, *prompt(9, VOCAB)]]
    mtp = theirs(family, folder)
    seen = rounds("mtp", model(family), prompts, 5, head=str(folder), feed=feed, **TREE)
    for each in seen:
        say = said(lambda path, each=each: their_scores(mtp, each.features, each.text, path, feed))
        assert difference(each, say) < TOLERANCE
    other = "norm" if feed == "auto" else "auto"
    wrong = [said(lambda path, each=each: their_scores(mtp, each.features, each.text, path, other)) for each in seen]
    assert any(difference(each, say) > NOTICED for each, say in zip(seen, wrong, strict=True))


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5"])
def test_layers_of_hybrid_targets_are_transformers(family: str, tmp_path: Path) -> None:
    """The engine does not run these targets yet, so the layer is compared alone."""
    folder, own = checkpoint(tmp_path, family, "qwen"), model(family)
    head, facts = read(str(folder), alone(own, capacity=20))
    assert facts["head"] == tmp_path.name
    mtp, ids = theirs(family, folder), torch.tensor([prompt(7, VOCAB)])
    features = torch.randn(1, 7, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    positions = torch.arange(7)[None]
    head.set_attn_implementation("eager")
    mask = torch.full((7, 7), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    with torch.inference_mode():
        expected = mtp.forward_layer(0, features, positions, None, input_ids=ids)
        found = head.scored(head(features, own.get_input_embeddings()(ids), positions, attention_mask=mask))
    assert (found - expected).abs().max() < TOLERANCE
    assert (head.fed_back(found) != found).any()


# ------------------------------------------------------------------ in an engine


@cache
def single(family: str) -> Any:
    """In float32, in which experts are computed as on a GPU, without reading the device."""
    return build(FAMILIES[family])


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, seed=3)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("options", [{"depth": 2}, {"tree": "dynamic", "budget": 24, "width": 5}], ids=str)
@pytest.mark.parametrize("family", ["qwen2", "glm4_moe", "deepseek_v3"])
def test_texts_are_ars_and_a_captured_round_drafts_what_an_eager_one_drafts(
    family: str, options: dict[str, Any], sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)
    prompts = [prompt(length, VOCAB, seed) for seed, length in enumerate((1, 23, 7))]
    found: list[Any] = []
    truth: list[list[int]] = []
    for captured in (False, True)[: 1 + sampling.greedy]:  # the recorder does not replay a step's noise
        with attached(single(family), slots=3, capacity=50, max_rows=32, graphs=captured, sampling=sampling) as engine:
            method = decoders.ready(decoders.with_options("mtp", options), engine)
            records = decoders.served(engine, method, prompts, 14, 3)
            truth = truth or [autoregressive(engine, ids, 14) for ids in prompts]
        assert [record.output_ids for record in records] == truth
        found.append(records)
    for one, other in zip(found[0], found[-1], strict=True):
        assert (one.accepted_lengths, one.tree_rows) == (other.accepted_lengths, other.tree_rows)
        assert one.measures == pytest.approx(other.measures, rel=1e-5)


# ------------------------------------------------------------------ what is refused


def refusal(name: str | None, made: Any = None, **options: Any) -> str:
    options = {**options, **({} if name is None else {"head": name})}
    with pytest.raises(UsageError) as refused:
        make_method("mtp", "mtp", options).ready(alone(made or model("qwen2"), capacity=40))
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda held: held.pop("mtp.norm.weight"), r"norm\.weight"),
        (lambda held: held.pop("mtp.layers.0.mlp.up_proj.weight"), r"block\.mlp\.up_proj\.weight"),
        (lambda held: held.update({"mtp.layers.1.mlp.up_proj.weight": torch.zeros(3, 3)}), r"layers\.1\.mlp"),
        (lambda held: held.update({"mtp.fc.weight": torch.zeros(8, 8)}), r"fc\.weight.*\[8, 8\]"),
        (lambda held: held.update({"mtp.fc.weight_scale_inv": torch.zeros(2)}), r"weight_scale_inv"),
        (lambda held: held.update({"mtp.fc.weight": held["mtp.fc.weight"].to(torch.float8_e4m3fn)}), r"F8_E4M3"),
        (lambda held: held.update({"mtp.norm.weight": torch.full([HIDDEN], torch.nan)}), r"mtp\.norm\.weight.*NaN"),
    ],
)
def test_checkpoints_that_are_damaged_are_refused(change: Any, named: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, "qwen2", "qwen")
    held = load_file(folder / "model.safetensors")
    change(held)
    save_file(held, folder / "model.safetensors")
    assert re.search(named, refusal(str(folder)))


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, "glm4_moe", "deepseek")
    held = load_file(folder / "model.safetensors")
    del held["model.layers.2.mlp.experts.2.up_proj.weight"]
    save_file(held, folder / "model.safetensors")
    assert "experts.2.up_proj.weight" in refusal(str(folder), model("glm4_moe"))


def test_no_weight_of_an_untrained_layer_is_left_as_the_memory_was() -> None:
    torch.use_deterministic_algorithms(True)  # new memory is NaN
    try:
        head = MtpHead.random(MtpConfig.of(supported("gpt_oss"), "deepseek", ""))  # whose layers have sinks
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(parameter.isfinite().all() for parameter in head.parameters())


def test_a_checkpoint_without_the_layer_is_refused(tmp_path: Path) -> None:
    own = tiny_llama(VOCAB)
    assert "--head random" in refusal(None, own)  # no checkpoint at all
    own.config._name_or_path = str(tmp_path)
    own.save_pretrained(tmp_path)
    assert "not given" in refusal(None, own)
    own.config.num_nextn_predict_layers = 2
    assert re.search("num_nextn_predict_layers is 2", refusal(None, own))
    own.config.num_nextn_predict_layers = 0
    assert re.search("num_nextn_predict_layers is 0", refusal(None, own))
    assert "GPT2LMHeadModel" in refusal(str(tmp_path), supported("gpt2"))


@pytest.mark.parametrize("layout", ["deepseek", "mimo", "speculators"])
@pytest.mark.parametrize("lost", [".", "proj.weight"], ids=["layer", "projection"])
def test_a_layer_that_is_not_there_is_refused(layout: str, lost: str, tmp_path: Path) -> None:
    folder, own = checkpoint(tmp_path, "qwen2", layout, layers=2), model("qwen2")
    held = load_file(folder / "model.safetensors")
    prefix = NAMES[layout][1].format(depth=own.config.num_hidden_layers + 1, layer=1)
    kept = {
        name: each for name, each in held.items() if not (name.startswith(prefix) and lost in name[len(prefix) - 1 :])
    }
    assert len(kept) < len(held)
    save_file(kept, folder / "model.safetensors")
    assert "1 of the 2 MTP layers" in refusal(str(folder), layers="own", depth=2)


def test_the_targets_own_checkpoint_is_the_default(tmp_path: Path) -> None:
    own = model("qwen2")
    own.config._name_or_path = str(checkpoint(tmp_path, "qwen2", "mimo", num_nextn_predict_layers=3))
    own.config.num_nextn_predict_layers = 3
    warned: list[str] = []
    target = alone(own, capacity=40, capture=eager)
    object.__setattr__(target, "warn", warned.append)
    head, facts = read(None, target)
    assert "3 MTP layers" in warned[0]
    assert facts == {"head": tmp_path.name}
    assert isinstance(head, MtpHead)
    assert head.embed_tokens is head.lm_head is None
    del own.config.num_nextn_predict_layers


def test_copies_of_the_targets_tables_are_not_kept(tmp_path: Path) -> None:
    folder, own = checkpoint(tmp_path, "qwen2", "deepseek", copies=True), model("qwen2")
    assert read(str(folder), alone(own, capacity=40))[0].lm_head is not None
    held = load_file(folder / "model.safetensors")
    held["model.layers.3.shared_head.head.weight"] = own.get_output_embeddings().weight.detach().clone()
    save_file(held, folder / "model.safetensors")
    head = read(str(folder), alone(own, capacity=40))[0]
    assert head.lm_head is None
    assert head.embed_tokens is not None
