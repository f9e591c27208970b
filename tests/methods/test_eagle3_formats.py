"""Each producer's heads against the oracle: every score of every drafted tree, the trees themselves, and refusals."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file, save_file
from support import level_rounds
from support.decoders import alone
from support.level_rounds import Drafts, Round, Say, difference
from support.models import layer_outputs, prompt, tiny_llama
from support.oracles import PRODUCERS, WRONG, dense, expand, taps, write_head
from torch import Tensor

from specbench.common.errors import UsageError
from specbench.heads.convert import convert
from specbench.planning.methods import make_method

VOCAB, LAYERS = 17, 8  # so few tokens that random drafts are often right; so many layers that all taps differ
TINY = {"vocab": VOCAB, "draft_vocab": 9, "masks": {"mask_token_id": 15}}
TREE = {"width": 3, "depth": 4, "budget": 20}
TOLERANCE = 1e-5
NOTICED = 1e-3

#: (producer, keys, the misreadings that show in such a head). Every flag is in both values somewhere.
HEADS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "original": (
        "original",
        {},
        ["taps", "residual", "fed back", "order", "shift", "position", "eps", "theta", "d2t", "softmax"],
    ),
    "original, every token": (
        "original",
        {"draft_vocab": VOCAB, "own_embedding": True, "head_dim": None, "rope": ""},
        ["d2t of all", "embedding", "taps"],
    ),
    "original, wide target": (
        "original",
        {"hidden": 24, "own_embedding": True, "draft_vocab": None, "maps": (), "rope": "parameters"},
        ["theta", "eps", "fed back"],
    ),
    "specforge": ("specforge", {"ids": [2, 5, 6]}, ["taps", "fed back", "residual", "d2t"]),
    "specforge, default layers": ("specforge", {"rope": "parameters"}, ["taps", "theta"]),
    "specforge, 3.1": (
        "specforge",
        {"fc_norm": True, "norm_output": True, "ids": [1, 4, 5]},
        ["fc_norm", "fc_norm fed back", "norm_output", "fed back", "norms the other way", "eps"],
    ),
    "specforge, scores without norm": ("specforge", {"norm_output": False, "fc_norm": False}, ["norm_output"]),
    "speculators": (
        "speculators",
        {"norm_before_residual": True, "verifier_norm": True, "norm_output": False},
        ["taps", "residual", "verifier_norm", "norm_output", "fed back", "eps", "theta", "order", "position"],
    ),
    "speculators, 3.1": (
        "speculators",
        {"norm_output": True, "fc_norm": True, "layers": 2, "ids": [6, 2, 4, 3], "norm_before_residual": False}
        | {"seed": 2},  # of those tried, the one whose rounding grows least from draft to draft
        ["taps", "taps sorted", "norm_output", "fed back", "fc_norm", "fc_norm fed back", "layers", "residual"],
    ),
    "speculators, gpt-oss": (
        "speculators",
        {"norm_before_fc": True, "ids": [2, 4, 5], "qk_norm": True, "rope": "parameters", "own_embedding": True},
        ["norm_before_fc", "norms the other way", "qk_norm", "qk_norm late", "theta", "embedding", "fed back"],
    ),
    "speculators, wide target": (
        "speculators",
        {"hidden": 24, "own_embedding": True, "fc_norm": True, "norm_output": True, "maps": ("d2t",)},
        ["norm_output", "fc_norm", "d2t"],
    ),
    "deepspec": (
        "deepspec",
        {"ids": [1, 2, 4, 5, 6], "draft_vocab": VOCAB, "own_embedding": True, "qk_norm": True, "maps": ()},
        ["taps", "residual", "fed back", "qk_norm", "qk_norm late", "embedding", "order", "shift", "position", "eps"],
    ),
    "peagle-specforge": (
        "peagle-specforge",
        {"layers": 2, "masks": {"ptd_token_id": 1, "pard_token": 3}, "ids": [2, 3, 6]},
        ["mask token", "mask fed back", "mask embedding", "look ahead", "taps", "layers", "residual", "position"],
    ),
    "peagle-specforge, all keys": (
        "peagle-specforge",
        {"norm_before_residual": True, "own_embedding": True}
        | {"masks": {"ptd_token_id": 1, "mask_token_id": 4, "dflash_config.mask_token_id": 7}},
        ["mask token", "residual", "embedding"],
    ),
    "peagle-speculators": (
        "peagle-speculators",
        {"layers": 3, "fc_norm": True, "qk_norm": True, "norm_before_residual": True, "own_embedding": True},
        ["mask without norms", "mask fed back", "mask embedding", "look ahead", "taps", "qk_norm", "layers", "fc_norm"],
    ),
    "peagle-speculators, gpt-oss": (
        "peagle-speculators",
        {"norm_before_fc": True, "ids": [5, 3]},
        ["mask without norms", "norm_before_fc", "taps sorted", "eps", "theta"],
    ),
}


def test_heads_are_of_all_producers_and_show_all_misreadings() -> None:
    assert {producer for producer, *_ in HEADS.values()} == set(PRODUCERS)
    assert {wrong for *_, shown in HEADS.values() for wrong in shown} == set(WRONG)


# ------------------------------------------------------------------ rounds in an engine


PROMPTS = [prompt(length, VOCAB, length) for length in (1, 12)]


@cache
def model() -> Any:
    return tiny_llama(VOCAB, num_hidden_layers=LAYERS).double()


@cache
def layers(text: tuple[int, ...]) -> list[Tensor]:
    """Each layer's outputs for a text."""
    return [layer[0] for layer in layer_outputs(model(), torch.tensor([text]))]


def rounds(folder: Path, tokens: int = 6, **options: Any) -> list[Round]:
    """Those of two prompts, whose features are transformers'."""
    seen = level_rounds.rounds("eagle3", model(), PROMPTS, tokens, head=str(folder), **{**TREE, **options})
    for each in seen:
        own = reported(folder, each)
        assert (each.features - own).abs().max() < 1e-5 * own.abs().max()
    return seen


# ------------------------------------------------------------------ the oracle on a round


def reported(folder: Path, each: Round, wrong: str = "") -> Tensor:
    """The features that a head gets."""
    found = layers(tuple(each.text[:-1]))
    return torch.cat([found[layer] for layer in taps(folder, LAYERS, wrong=wrong)], dim=-1)


def says(folder: Path, each: Round, wrong: str = "") -> Say:
    """The oracle's log-probabilities after a path of drafts under a round's text."""
    # The features that the head got, so that it is the head alone that is compared: they were shown to be right.
    features = reported(folder, each, wrong) if wrong.startswith("taps") else each.features
    embedding, known = model().get_input_embeddings().weight, dict[Drafts, Tensor]()

    def say(path: Drafts) -> Tensor:
        if path not in known:
            outcome = dense(folder, features, each.text[1:], path, embedding, wrong=wrong)
            known.update({path[:at]: row for at, row in enumerate(outcome)})
        return known[path]

    return say


def best_of_all(say: Say, width: int, depth: int, budget: int) -> list[tuple[Drafts, float]]:
    """The best paths of the ``width`` best tokens of each position, however many a level has."""

    def narrow(path: Drafts) -> Tensor:
        outcome = say((0,) * len(path))  # which drafts come before, it does not see
        return outcome.masked_fill(outcome < outcome.topk(width).values[-1], -torch.inf)

    return expand(narrow, max(budget, width**depth), depth, budget)


def check(folder: Path, seen: Sequence[Round], width: int, depth: int, budget: int) -> None:
    """Every score, and every tree node for node."""
    grown = best_of_all if "mask_hidden" in load_file(folder / "model.safetensors") else expand
    for each in seen:
        say = says(folder, each)
        assert difference(each, say) < TOLERANCE
        assert set(each.paths()[1:]) == {path for path, _ in grown(say, width, depth, budget)}


@pytest.mark.parametrize("kind", HEADS)
def test_every_score_is_the_oracles_and_no_misread_heads(kind: str, tmp_path: Path) -> None:
    producer, keys, shown = HEADS[kind]
    folder = write_head(tmp_path, producer, **{**TINY, **keys})
    seen = rounds(folder)
    assert len(seen) >= 6  # three of each prompt
    assert any(len(path) == TREE["depth"] for each in seen for path in each.paths())  # three levels were fed back
    check(folder, seen, **TREE)
    for wrong in shown:
        assert any(difference(each, says(folder, each, wrong)) > NOTICED for each in seen), wrong


@pytest.mark.parametrize("producer", ["speculators", "peagle-specforge"])
@pytest.mark.parametrize(
    ("tree", "width", "depth", "budget"),
    [("chain", 3, 4, 9), ("chain", 3, 6, 4), ("dynamic", 1, 3, 9), ("dynamic", 2, 3, 60), ("dynamic", 4, 5, 5)],
)
def test_trees_of_other_sizes(producer: str, tree: str, width: int, depth: int, budget: int, tmp_path: Path) -> None:
    """Chains are trees of width 1; what cannot be filled is left out, and what does not fit."""
    folder = write_head(tmp_path, producer, **TINY, layers=2, norm_output=True)
    seen = rounds(folder, 4, tree=tree, width=width, depth=depth, budget=budget)
    check(folder, seen, 1 if tree == "chain" else width, depth, budget)
    if tree == "chain":
        assert all(each.tree.is_chain for each in seen)


def test_accepted_paths_bring_their_features(tmp_path: Path) -> None:
    """Rounds after several accepted drafts, of a longer text, are as right as the others."""
    folder = write_head(tmp_path, "speculators", **TINY, layers=2, norm_output=True)
    seen = rounds(folder, 18, depth=3, width=4, budget=24)
    own = [each for each in seen if each.text[:12] == PROMPTS[1]]
    brought = [len(after.text) - len(before.text) for before, after in pairwise(own)]
    assert max(brought) > 1
    check(folder, own[-3:], 4, 3, 24)


# ------------------------------------------------------------------ what is refused


def refusal(folder: Path | str, layers: int = LAYERS, vocab: int = VOCAB, hidden: int = 32) -> str:
    """The one line that a head is refused with for a target of such sizes."""
    other = tiny_llama(vocab, num_hidden_layers=layers, hidden_size=hidden)
    made = make_method("eagle3", "eagle3", {"head": str(folder), **TREE})
    with pytest.raises(UsageError) as refused:
        made.ready(alone(other, capacity=40))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def changed(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    """The same head with other tensors."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda head: head.pop("mask_hidden"), r"mask_hidden"),
        (lambda head: head.pop("d2t"), r"d2t"),
        (lambda head: head.update({"fc.weight": torch.zeros(32, 64)}), r"fc\.weight.*\[32, 64\]"),
        (lambda head: head.update(d2t=head["d2t"] + VOCAB), r"d2t"),
        (lambda head: head.update(d2t=head["d2t"] - VOCAB), r"d2t"),
        (lambda head: head.update(d2t=head["d2t"].float()), r"d2t.*torch\.float32"),
    ],
)
def test_files_that_are_not_whole_are_refused(change: Any, named: str, tmp_path: Path) -> None:
    assert re.search(named, refusal(changed(write_head(tmp_path, "peagle-speculators", **TINY), change)))


@pytest.mark.parametrize(
    ("producer", "keys", "sizes", "named"),
    [
        ("original", {}, {"vocab": 19}, "17.*19"),
        ("speculators", {}, {"hidden": 40}, "32.*40"),
        ("speculators", {"hidden": 24}, {}, "embed_tokens.weight"),
        ("specforge", {"ids": [1, 3, 8]}, {}, "1, 3, 8"),
        ("speculators", {"ids": [0, 4, 5]}, {}, "-1, 3, 4"),
        ("original", {}, {"layers": 4}, "4"),
        ("speculators", {"norm_before_fc": True, "fc_norm": True}, {}, "norm_before_fc.*fc_norm"),
        ("peagle-specforge", {"masks": {}}, {}, "mask_token_id"),
        ("peagle-speculators", {"masks": {"mask_token_id": 17}}, {}, "17"),
    ],
)
def test_heads_of_other_targets_are_refused(
    producer: str, keys: dict[str, Any], sizes: dict[str, int], named: str, tmp_path: Path
) -> None:
    assert re.search(named, refusal(write_head(tmp_path, producer, **{**TINY, **keys}), **sizes))


def test_a_pickle_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    folder = write_head(tmp_path / "head", "original", **TINY)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()
    message = refusal(folder)
    assert f"python -m specbench.heads.convert {folder}" in message
    assert convert(folder) == folder
    assert load_file(folder / "model.safetensors").keys() == safetensors.torch.load(whole).keys()
    ready_target = alone(model(), capacity=40)
    made = make_method("eagle3", "eagle3", {"head": str(folder), **TREE}).ready(ready_target)
    assert made.taps == taps(folder, LAYERS)
