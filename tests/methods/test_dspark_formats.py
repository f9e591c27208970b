"""Each layout's heads against the oracle: scores and confidences of all candidates, the trees, and refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import level_rounds
from support.decoders import alone, eager, served, target
from support.dspark_oracle import LAYOUTS, WRONG, Say, dense_dspark, drafts_of, read_dspark, write_dspark
from support.level_rounds import Drafts
from support.models import attached, autoregressive, layer_outputs, prompt, tiny_llama
from support.oracles import expand
from torch import Tensor

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.common.errors import UsageError
from specbench.heads.head_rounds import HeadRounds
from specbench.heads.levels import Levels
from specbench.methods.dspark.head import DSparkHead
from specbench.planning.methods import make_method

VOCAB, LAYERS = 17, 8  # so few tokens that random drafts are often right; so many layers that all taps differ
TREE = {"width": 3, "budget": 20}
TOLERANCE = 1e-5
NOTICED = 1e-3
CAPTURED = recorded_capture(torch.device("cpu"))

_BODY = [
    "taps", "theta", "eps", "hidden_norm", "context normed", "qk_norm", "qk_norm late", "causal", "position", "row",
    "row before", "mask token", "anchor", "norm", "layers",
]  # fmt: skip
_CONFIDENCE = ["confidence markov", "confidence order", "confidence shift", "confidence bias"]
_MARKOV = ["markov", "markov at the anchor", "markov shift"]

#: (layout, keys, the misreadings that show in such a head).
HEADS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "deepspec": (
        "deepspec",
        {},
        [*_BODY, *_MARKOV, *_CONFIDENCE, "embedding", "lm_head", "taps sorted", "markov transposed"],
    ),
    "deepspec, gated": (
        "deepspec",
        {"kind": "gated", "layers": 1},
        ["gate", "gate order", "gate tanh", *_MARKOV, "confidence shift"],
    ),
    "deepspec, rnn": (
        "deepspec",
        {"kind": "rnn", "layers": 1, "with_markov": False},
        ["rnn state", "rnn order", "rnn keeps", "rnn anchor", *_MARKOV, "confidence bias"],
    ),
    "deepspec, dflash": ("deepspec", {"rank": 0, "confidence": False}, ["row", "row before", "lm_head", "causal"]),
    "deepspec, dflash with confidence": ("deepspec", {"rank": 0, "with_markov": False}, ["row", "confidence bias"]),
    "speculators": (
        "speculators",
        {"draft_vocab": 9},
        ["taps", "taps sorted", "d2t", "softmax", "markov ids", "row", *_MARKOV, *_CONFIDENCE, "embedding", "theta"],
    ),
    "speculators, bonus anchor": (
        "speculators",
        {"anchored": False, "kind": "gated"},
        ["row", "row before", "taps", "gate", *_MARKOV],
    ),
    "speculators, bonus anchor, rnn": (
        "speculators",
        {"anchored": False, "kind": "rnn", "draft_vocab": 9},
        ["rnn anchor", "rnn state", "row before", "d2t"],
    ),
    "speculators, before the key": (
        "speculators",
        {"anchored": False, "says_anchored": False},
        ["row", "row before", *_MARKOV],
    ),
    "speculators, without the key": ("speculators", {"says_anchored": False}, ["row", *_MARKOV]),
    "specforge": ("specforge", {"own": False}, ["taps", "row", "mask token", *_MARKOV, *_CONFIDENCE]),
    "sglang": ("sglang", {"own": False}, ["taps", "row", "mask token", "eps", *_MARKOV, *_CONFIDENCE]),
    "sglang, no confidence": ("sglang", {"own": False, "confidence": False, "kind": "rnn"}, ["rnn state", "row"]),
    "vllm": ("vllm", {"anchored": False, "draft_vocab": 9}, ["row", "row before", "d2t", "softmax", *_MARKOV]),
    "vllm, causal": ("vllm", {"causal": True}, ["causal", "row", *_CONFIDENCE]),
}


def test_heads_are_of_all_layouts_and_show_all_misreadings() -> None:
    assert {layout for layout, *_ in HEADS.values()} == set(LAYOUTS)
    assert {wrong for *_, shown in HEADS.values() for wrong in shown} == set(WRONG)


# ------------------------------------------------------------------ rounds in an engine


PROMPTS = [prompt(length, VOCAB, length) for length in (1, 12)]


@dataclass(frozen=True)
class Round(level_rounds.Round):
    """A round with all that it scored: {path: (log-probability, confidence)}."""

    candidates: dict[Drafts, tuple[float, float | None]]


@cache
def model() -> Any:
    return tiny_llama(VOCAB, num_hidden_layers=LAYERS).double()


@cache
def layers(text: tuple[int, ...]) -> list[Tensor]:
    """Each layer's outputs for a text."""
    return [layer[0] for layer in layer_outputs(model(), torch.tensor([text]))]


def reported(folder: Path, text: Sequence[int], wrong: str = "") -> Tensor:
    """The features that a head gets for a text."""
    found = layers(tuple(text))
    return torch.cat([found[layer] for layer in read_dspark(folder, wrong)["taps"]], dim=-1)


def scored(outcome: Sequence[Tensor], width: int) -> dict[Drafts, tuple[float, float | None]]:
    """All candidates of a round."""
    tokens, logp, best, confidence = (part.tolist() for part in outcome)
    parents = Levels(0, tokens, logp, best, width).parents() if width > 1 else range(-1, len(tokens) - 1)
    paths: list[Drafts] = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return dict(zip(paths, zip(logp, confidence or [None] * len(logp), strict=True), strict=True))


def rounds(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tokens: int = 6, capture: Any = eager, **options: Any
) -> list[Round]:
    """Those of two prompts, whose features are transformers'."""
    width = 1 if options.get("tree") == "chain" else options.get("width", TREE["width"])
    width = min(width, json.loads((folder / "config.json").read_text()).get("draft_vocab_size", VOCAB))
    outcomes: list[Sequence[Tensor]] = []
    drafted = HeadRounds.drafted

    def watched(self: HeadRounds, slot: int) -> Any:
        assert bool(self._passes._launches) == (capture is CAPTURED)
        root, outcome = drafted(self, slot)
        outcomes.append(outcome)
        return root, outcome

    monkeypatch.setattr(HeadRounds, "drafted", watched)
    found = level_rounds.rounds("dspark", model(), PROMPTS, tokens, capture, head=str(folder), **{**TREE, **options})
    for each in found:
        own = reported(folder, each.text[:-1])
        assert (each.features - own).abs().max() < 1e-5 * own.abs().max()
    return [
        Round(each.features, each.text, each.tree, scored(outcome, width))
        for each, outcome in zip(found, outcomes, strict=True)
    ]


def says(folder: Path, each: Round, wrong: str = "") -> Say:
    """The oracle's log-probabilities and confidence after a path of drafts under a round's text."""
    features = reported(folder, each.text[:-1], wrong) if wrong.startswith("taps") else each.features
    embedding, lm_head = model().get_input_embeddings().weight, model().get_output_embeddings().weight
    return dense_dspark(folder, features, each.text[-1], embedding, lm_head, wrong=wrong)


def difference(each: Round, say: Say) -> float:
    """How far log-probabilities and confidences of all candidates are from the oracle's, at most."""
    worst = 0.0
    for path, (logp, confidence) in each.candidates.items():
        expected, sure = say(path[:-1])
        worst = max(worst, abs(logp - float(expected[path[-1]])) / max(1.0, abs(logp)))
        assert (confidence is None) == (sure is None)
        worst = max(worst, abs((confidence or 0) - float(sure or 0)))
    return worst


def expected_tree(say: Say, width: int, depth: int, budget: int, least: float = 0.0) -> set[Drafts]:
    """The most probable paths of all scored ones, without those that the confidence cuts."""

    def sure(path: Drafts) -> bool:
        probabilities = [
            float(logp[token].exp()) if confidence is None else float(confidence)
            for at, token in enumerate(path)
            for logp, confidence in [say(path[:at])]
        ]
        return all(each >= least for each in probabilities)

    every = expand(lambda path: say(path)[0], width, depth, width * width * depth + 2)
    return {path for path, _ in [each for each in every if sure(each[0])][: budget - 1]}


@pytest.mark.parametrize("kind", HEADS)
def test_every_score_is_the_oracles_and_no_misread_heads(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, keys, shown = HEADS[kind]
    folder = write_dspark(tmp_path, layout, **keys)
    depth = drafts_of(folder)
    seen = rounds(folder, monkeypatch)
    assert len(seen) >= 4
    for each in seen:
        say = says(folder, each)
        assert max(map(len, each.candidates)) == depth == 4 - (not keys.get("anchored", True))
        assert difference(each, say) < TOLERANCE
        assert set(each.paths()[1:]) == expected_tree(say, 3, depth, 20)
    for wrong in shown:
        assert any(difference(each, says(folder, each, wrong)) > NOTICED for each in seen), wrong


@pytest.mark.parametrize("capture", [eager, CAPTURED], ids=["eager", "captured"])
@pytest.mark.parametrize(
    ("keys", "options"),
    [
        ({}, {"tree": "chain"}),
        ({"kind": "rnn"}, {"tree": "chain", "budget": 3}),
        ({"kind": "rnn", "draft_vocab": 9}, {"width": 2, "budget": 60}),
        ({"kind": "gated"}, {"width": 4, "depth": 3, "budget": 7}),
        ({"rank": 0, "confidence": False}, {"width": 2, "budget": 30}),
        ({"draft_vocab": 3}, {"width": 5, "budget": 30}),  # wider than what can be drafted
        ({}, {"tree": "chain", "confidence": 0.5}),
        ({"kind": "rnn"}, {"width": 3, "budget": 30, "confidence": 0.45}),
        ({"confidence": False}, {"tree": "chain", "confidence": 0.2}),
        ({"confidence": False}, {"width": 3, "budget": 30, "confidence": 0.1}),
    ],
)
def test_trees_and_chains_of_other_sizes(
    keys: dict[str, Any], options: dict[str, Any], capture: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = "speculators" if "draft_vocab" in keys else "deepspec"
    folder = write_dspark(tmp_path, layout, **keys)
    seen = rounds(folder, monkeypatch, 14, capture, **options)
    chain, budget = options.get("tree") == "chain", options.get("budget", 20)
    width = 1 if chain else min(options["width"], keys.get("draft_vocab", VOCAB))
    depth = min(options.get("depth", 4), budget - 1)
    sizes = set()
    for each in seen:
        say = says(folder, each)
        assert difference(each, say) < TOLERANCE
        assert set(each.paths()[1:]) == expected_tree(say, width, depth, budget, options.get("confidence", 0))
        sizes.add(len(each.tree))
        assert each.tree.is_chain or not chain
    if "confidence" in options:
        assert len(sizes) > 1  # it cut some and left some


# ------------------------------------------------------------------ files that come back, and files that are refused


@pytest.mark.parametrize("kind", [kind for kind in HEADS if kind != "vllm, causal"])
def test_a_head_that_is_saved_comes_back_in_deepspecs_layout(kind: str, tmp_path: Path) -> None:
    layout, keys, _ = HEADS[kind]
    made = DSparkHead.load(write_dspark(tmp_path / "a", layout, **keys), model().config)
    made.save(tmp_path / "b")
    again = DSparkHead.load(tmp_path / "b", model().config)
    assert again.config == made.config
    assert {**again.state_dict()}.keys() == {**made.state_dict()}.keys()
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in made.state_dict().items())
    assert json.loads((tmp_path / "b" / "config.json").read_text())["architectures"] == ["Qwen3DSparkModel"]


def refusal(folder: Path, method: str = "dspark", sizes: Mapping[str, int] | None = None) -> str:
    """The one line that a head is refused with for a target of such sizes."""
    own = {"vocab": VOCAB, "layers": LAYERS, "hidden": 32, **(sizes or {})}
    other = tiny_llama(own["vocab"], num_hidden_layers=own["layers"], hidden_size=own["hidden"])
    with pytest.raises(UsageError) as refused:
        make_method(method, method, {"head": str(folder)}).ready(alone(other, capacity=40))
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda head: head.pop("markov_head.markov_w1.weight"), r"markov_head\.markov_w1\.weight"),
        (lambda head: head.pop("confidence_head.proj.bias"), r"confidence_head\.proj\.bias"),
        (lambda head: head.pop("layers.1.self_attn.k_norm.weight"), r"layers\.1\.self_attn\.k_norm\.weight"),
        (lambda head: head.update({"mask_embedding": torch.zeros(32)}), "mask_embedding"),
        (lambda head: head.update({"markov_head.gate_proj.weight": torch.zeros(6, 38)}), r"markov_head\.gate_proj"),
        (lambda head: head.update({"markov_head.markov_w2.weight": torch.zeros(17, 5)}), r"markov_w2.*\[17, 5\]"),
        (lambda head: head.update({"confidence_head.proj.weight": torch.zeros(1, 32)}), r"confidence.*\[1, 32\]"),
        (lambda head: head.update({"lm_head.weight": torch.zeros(9, 32)}), r"lm_head\.weight.*\[9, 32\]"),
        (lambda head: head.update({"embed_tokens.weight": torch.full((17, 32), torch.nan)}), "embed_tokens"),
    ],
)
def test_files_that_are_not_whole_are_refused(change: Any, named: str, tmp_path: Path) -> None:
    file = write_dspark(tmp_path, "deepspec") / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    assert re.search(named, refusal(tmp_path))


@pytest.mark.parametrize(
    ("layout", "keys", "change", "sizes", "named"),
    [
        ("deepspec", {}, {}, {"hidden": 40}, "32.*40"),
        ("deepspec", {}, {}, {"layers": 9}, "8.*9"),
        ("deepspec", {}, {}, {"vocab": 19}, "17.*19"),
        ("speculators", {"taps": (1, 7)}, {}, {}, "7"),  # the last layer's output
        ("deepspec", {"taps": (1, -1)}, {}, {}, "-1"),
        ("deepspec", {"mask": 17}, {}, {}, "17"),
        ("deepspec", {}, {"markov_head_type": "gru"}, {}, "gru"),
        ("deepspec", {}, {"markov_rank": 0}, {}, "markov_rank"),
        ("deepspec", {}, {"vocab_size": None}, {}, "vocab_size"),
        ("deepspec", {}, {"target_layer_ids": []}, {}, "markov|fc|target_layer_ids"),
        ("deepspec", {}, {"architectures": ["Gemma4DSparkModel"], "model_type": "gemma4_text"}, {}, "Gemma 4"),
        ("specforge", {}, {"dflash_config": {"projector_type": "domino"}}, {}, "Domino"),
        ("specforge", {}, {"architectures": ["DFlash2DraftModel"]}, {}, "DFlash2"),
        ("specforge", {}, {"dflash_config": {"projector_type": "other"}}, {}, "other"),
        ("sglang", {}, {"model_type": "deepseek_v4"}, {}, "DeepSeek V4"),
        ("deepspec", {}, {"layer_types": ["sliding_attention"] * 2, "sliding_window": 4}, {}, "sliding"),
    ],
)
def test_heads_that_cannot_run_are_refused_by_name(
    layout: str, keys: dict[str, Any], change: dict[str, Any], sizes: dict[str, int], named: str, tmp_path: Path
) -> None:
    file = write_dspark(tmp_path, layout, **keys) / "config.json"
    config = {**json.loads(file.read_text()), **change}
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    assert re.search(named, refusal(tmp_path, sizes=sizes))


def test_jetspec_runs_deepspecs_dflash_and_refuses_dspark(tmp_path: Path) -> None:
    """Its trees are those of the same scores."""
    assert "dspark" in refusal(write_dspark(tmp_path / "dspark", "deepspec"), "jetspec")
    for layout in ("deepspec", "speculators"):
        folder = write_dspark(tmp_path / layout, layout, rank=0, confidence=False)
        with attached(model(), capacity=60, max_rows=64) as engine:
            truth = autoregressive(engine, PROMPTS[1], 12)
            chains = [
                served(engine, make_method(name, name, chosen).ready(target(engine)), [PROMPTS[1]], 12)[0]
                for name, chosen in (
                    ("jetspec", {"head": str(folder), "tree": "chain", "budget": 5}),
                    ("dspark", {"head": str(folder), "tree": "chain", "budget": 5}),
                )
            ]
        assert [each.output_ids for each in chains] == [truth] * 2
        assert chains[0].accepted_lengths == chains[1].accepted_lengths
        assert chains[0].measures["tree_depth"] == 4
