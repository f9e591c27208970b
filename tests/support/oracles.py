"""Methods and graders written a second time, plainly, or run by the original code."""

from __future__ import annotations

import contextlib
import io
import json
import string
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor

from specbench.decoding.tree import StepResult, TokenTree

# ------------------------------
# EAGLE-3 heads written down a second time: tiny checkpoints in each producer's form, and what such a head says.
#
# From the description of the formats alone: plain functions over dicts of tensors, float64, every row computed anew
# from the first one on, nothing cached. Anyone who misreads a format in one of the ways of :data:`WRONG` gets other
# numbers, and the oracle can take each of these ways itself. The original reads the outputs of layers 1, L // 2 - 1
# and L - 4 and has one ``midlayer``, as SpecForge has, whose ids are of layers whose outputs are read. speculators'
# are of layers whose inputs are read; its layers are ``layers.i``, and what it says of them is a level deeper.
# P-EAGLE has ``layers.i`` too, and ids by who made it. DeepSpec has Qwen3's ``layers.0`` and ids of outputs.


PRODUCERS = ("original", "specforge", "speculators", "deepspec", "peagle-specforge", "peagle-speculators")

#: Ways to misread a head, each of which changes what it says where the head has what is misread.
WRONG: Mapping[str, str] = {
    "taps": "the ids of the layers in the sense of the other producer",
    "taps sorted": "the layers from low to high, not in the order given",
    "residual": "norm_before_residual the other way round",
    "fed back": "normed where it is not, and not where it is",
    "norm_output": "the key in the sense of the other producer, its default too",
    "order": "the hidden part before the embedding",
    "shift": "the embedding of the token whose features these are, not of the one after it",
    "position": "a draft at the position of the row it hangs under",
    "eps": "1e-6, which most files say",
    "theta": "10000, which is the default",
    "d2t": "as a map to the target's tokens, not as a difference",
    "d2t of all": "used, though every token can be drafted",
    "softmax": "over the target's vocabulary, what cannot be drafted at a logit of 0",
    "embedding": "the target's, though the file has one",
    "fc_norm": "left out",
    "fc_norm fed back": "applied to what is fed back too",
    "norm_before_fc": "left out",
    "norms the other way": "one norm over the concatenation as one a layer, and the other way round",
    "qk_norm": "left out",
    "qk_norm late": "after the rotation",
    "layers": "only the first",
    "verifier_norm": "in place of the head's own last norm",
    "mask token": "its keys tried in the opposite order",
    "mask fed back": "the head's own output in place of mask_hidden, as in EAGLE-3",
    "mask embedding": "the drafts' own, as in EAGLE-3",
    "mask without norms": "mask_hidden straight into fc",
    "look ahead": "the rows of a pass see those after them",
}

_MASK_KEYS = ("dflash_config.mask_token_id", "mask_token_id", "pard_token", "ptd_token_id")


# ------------------------------------------------------------------ checkpoints


#: What :func:`write` takes, and what it is when it is not given. None leaves a key out of the file.
KEYS: Mapping[str, Any] = {
    "seed": 0,  # of the weights
    "layers": 1,
    "vocab": 97,  # of the target
    "draft_vocab": 48,  # tokens that can be drafted; left out, that is all
    "hidden": 32,
    "target_hidden": 32,  # in the file where it differs from the head's own
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,  # left out, it is hidden // heads
    "ids": None,  # of the layers that are read, as the producer writes them
    "own_embedding": False,  # the file has embed_tokens.weight
    "norm_before_residual": None,
    "norm_before_fc": None,
    "fc_norm": None,
    "norm_output": None,
    "qk_norm": False,  # the layers are Qwen3's, with norms of queries and keys; speculators and DeepSpec only
    "verifier_norm": False,  # the file has a tensor of this name; speculators only
    "maps": ("d2t", "t2d"),  # those in the file
    "rope": "theta",  # where the base of the rotation stands: "theta", "parameters", or nowhere: ""
    # Both far from what they are everywhere, so that a loader shows that does not ask the file.
    "theta": 1000.0,
    "eps": 0.02,
    "masks": {"mask_token_id": 95},  # of P-EAGLE, by key; a dot stands between the levels
}


def write_head(folder: Path, producer: str, **given: Any) -> Path:
    """Writes ``config.json`` and ``model.safetensors`` of a random head, by :data:`KEYS`; returns the folder."""
    assert producer in PRODUCERS, producer
    assert set(given) <= set(KEYS), given
    keys = {**KEYS, **given}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_config(producer, keys), indent=1))
    save_file(_tensors(producer, keys), folder / "model.safetensors")
    return folder


def _tensors(producer: str, keys: Mapping[str, Any]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(keys["seed"])
    hidden, vocab, drafts = keys["hidden"], keys["vocab"], keys["draft_vocab"] or keys["vocab"]
    size, taps = keys["head_dim"] or hidden // keys["heads"], len(keys["ids"] or (1, 2, 3))
    wide = taps * keys["target_hidden"]

    # Large enough that everything in the head matters.
    def matrix(*shape: int) -> Tensor:
        return 0.3 * torch.randn(*shape, generator=generator)

    def norm(width: int) -> Tensor:
        return 1 + 0.3 * torch.randn(width, generator=generator)

    found = {"fc": matrix(hidden, wide), "norm": norm(hidden), "lm_head": matrix(drafts, hidden)}
    for layer in range(keys["layers"]):
        name = "midlayer." if producer in ("original", "specforge") else f"layers.{layer}."
        for which, heads in (("q", keys["heads"]), ("k", keys["kv_heads"]), ("v", keys["kv_heads"])):
            found[f"{name}self_attn.{which}_proj"] = matrix(heads * size, hidden if layer else 2 * hidden)
        found[f"{name}self_attn.o_proj"] = matrix(hidden, keys["heads"] * size)
        found |= {f"{name}mlp.{which}_proj": matrix(hidden + 16, hidden) for which in ("gate", "up")}
        found[f"{name}mlp.down_proj"] = matrix(hidden, hidden + 16)
        norms = ["input_layernorm", "post_attention_layernorm", *([] if layer else ["hidden_norm"])]
        found |= {f"{name}{which}": norm(hidden) for which in norms}
        found |= {f"{name}self_attn.{which}_norm": norm(size) for which in "qk" if keys["qk_norm"]}
    found |= {"input_norm": norm(wide)} if keys["norm_before_fc"] else {}
    found |= {f"fc_norm.{at}": norm(keys["target_hidden"]) for at in range(taps) if keys["fc_norm"]}
    found |= {"embed_tokens": matrix(vocab, hidden)} if keys["own_embedding"] else {}
    found |= {"verifier_norm": norm(hidden)} if keys["verifier_norm"] else {}
    found = {f"{name}.weight": tensor for name, tensor in found.items()}
    if producer.startswith("peagle"):
        found["mask_hidden"] = torch.randn(1, 1, wide, generator=generator)
    drafted = torch.randperm(vocab, generator=generator)[:drafts]
    # Who can draft all has no use for a map: what a file has there nevertheless may be anything.
    drafted = drafted if drafts == vocab else drafted.sort().values
    maps = {
        "d2t": drafted - torch.arange(drafts),
        "t2d": torch.zeros(vocab, dtype=torch.bool).index_fill(0, drafted, True),
    }
    return found | {name: tensor for name, tensor in maps.items() if name in keys["maps"]}


def _config(producer: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    nested, parallel = producer.endswith("speculators"), producer.startswith("peagle")
    rope = {
        "theta": {"rope_theta": keys["theta"]},
        "parameters": {"rope_parameters": {"rope_type": "default", "rope_theta": keys["theta"]}},
    }
    layer = {
        "model_type": "qwen3" if keys["qk_norm"] else "llama", "vocab_size": keys["vocab"],
        "hidden_size": keys["hidden"], "intermediate_size": keys["hidden"] + 16, "num_hidden_layers": keys["layers"],
        "num_attention_heads": keys["heads"], "num_key_value_heads": keys["kv_heads"], "head_dim": keys["head_dim"],
        "rms_norm_eps": keys["eps"], "hidden_act": "silu", "max_position_embeddings": 512, "attention_bias": False,
        "tie_word_embeddings": False, **rope.get(keys["rope"], {}),
    }  # fmt: skip
    config = {
        "draft_vocab_size": keys["draft_vocab"],
        "target_hidden_size": None if keys["target_hidden"] == keys["hidden"] else keys["target_hidden"],
        **{name: keys[name] for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")},
    }
    kind = "peagle" if parallel else "eagle3"
    if producer == "deepspec":
        about = {"target_layer_ids": keys["ids"], "num_target_layers": 8, "ttt_length": 7, "step_loss_decay": 0.8}
        found = {"architectures": ["Qwen3Eagle3Model"], **layer, **about}
        return {name: value for name, value in found.items() if value is not None}
    if nested:
        config |= {
            "architectures": ["PEagleSpeculator" if parallel else "Eagle3Speculator"],
            "speculators_model_type": kind,
            "speculators_config": {
                "algorithm": kind,
                "default_proposal_method": "greedy",
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
                "verifier": {"name_or_path": "the/target", "architectures": ["LlamaForCausalLM"]},
            },
            "transformer_layer_config": {name: value for name, value in layer.items() if value is not None},
        }
    else:
        kinds = {"original": "LlamaForCausalLM", "specforge": "LlamaForCausalLMEagle3"}
        config |= {"architectures": [kinds.get(producer, "PEagleDraftModel")], **layer}
    ids = {"eagle_aux_hidden_state_layer_ids": keys["ids"]}
    config |= {} if keys["ids"] is None else ids if nested else {"eagle_config": ids}
    for key, token in keys["masks"].items() if parallel else ():
        *above, last = key.split(".")
        config |= {above[0]: {last: token}} if above else {last: token}
    return {name: value for name, value in config.items() if value is not None}


# ------------------------------------------------------------------ what a file means


def taps(folder: Path, target_layers: int, *, wrong: str = "") -> tuple[int, ...]:
    """Layers of a target of ``target_layers`` whose outputs the head reads, from 0, in its order."""
    config = json.loads((folder / "config.json").read_text())
    nested = "speculators_model_type" in config
    inputs = nested != (wrong == "taps")  # ids name the layers whose inputs are read
    named = (config if nested else config.get("eagle_config", {})).get("eagle_aux_hidden_state_layer_ids")
    named = config.get("target_layer_ids", named)
    if named is None:
        after = 0 if wrong != "taps" else 1
        found = [layer + after for layer in (1, target_layers // 2 - 1, target_layers - 4)]
    else:
        found = [layer - 1 if inputs else layer for layer in named]
    return tuple(sorted(found) if wrong == "taps sorted" else found)


def _read(folder: Path, wrong: str) -> dict[str, Any]:
    """A head as one flat dict: tensors by speculators' names without ``.weight``, and what its keys say."""
    config = json.loads((folder / "config.json").read_text())
    nested = "speculators_model_type" in config
    layer = config["transformer_layer_config"] if nested else config
    head: dict[str, Any] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        short = name.replace("midlayer.", "layers.0.").removesuffix(".weight")
        head[short] = tensor.double() if tensor.is_floating_point() else tensor
    head["taps"] = head["fc"].shape[1] // (config.get("target_hidden_size") or layer["hidden_size"])
    norms = [head.pop(f"fc_norm.{at}") for at in range(head["taps"]) if f"fc_norm.{at}" in head]
    head |= {"fc_norm": torch.cat(norms)} if norms else {}
    head.pop({"fc_norm": "fc_norm", "norm_before_fc": "input_norm"}.get(wrong, ""), None)
    rope = layer.get("rope_parameters") or layer
    head["theta"] = 10000.0 if wrong == "theta" else rope.get("rope_theta", 10000.0)
    head["eps"] = 1e-6 if wrong == "eps" else layer["rms_norm_eps"]
    head["size"] = layer.get("head_dim") or layer["hidden_size"] // layer["num_attention_heads"]
    head["layers"] = 1 if wrong == "layers" else layer["num_hidden_layers"]
    head["vocab"] = layer["vocab_size"]
    head["all"] = config.get("draft_vocab_size") in (None, layer["vocab_size"])
    head["norm residual"] = bool(config.get("norm_before_residual")) != (wrong == "residual")
    # One key in two senses: speculators feeds back what the norm made, SpecForge leaves the norm out.
    feeds = nested != (wrong == "norm_output")
    outcome = config.get("norm_output")
    head["norm fed back"] = (feeds and bool(outcome)) != (wrong == "fed back")
    head["norm logits"] = feeds or outcome is not False
    if config.get("speculators_model_type") == "peagle" or "PEagleDraftModel" in config["architectures"]:
        flat = config | {f"dflash_config.{key}": value for key, value in config.get("dflash_config", {}).items()}
        head["mask"] = [flat[key] for key in _MASK_KEYS if key in flat][-1 if wrong == "mask token" else 0]
    return head


def _rms(head: dict[str, Any], name: str, x: Tensor) -> Tensor:
    """Of each vector of ``x``; the weight has one for all, or one for each of the last but one dimension."""
    return rms(x, head[name].view(-1, x.shape[-1]), head["eps"])


def _fused(head: dict[str, Any], features: Tensor, wrong: str) -> Tensor:
    """[n, H] of concatenated features [n, taps × Ht]."""
    whole, each = "input_norm", "fc_norm"
    if wrong == "norms the other way":
        whole, each = each, whole
    if whole in head:
        features = _rms(head, whole, features)
    if each in head:
        features = _rms(head, each, features.unflatten(-1, (head["taps"], -1))).flatten(1)
    return features @ head["fc"].T


# ------------------------------------------------------------------ what a head computes


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def rotated(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Vectors [n, heads, D] at positions [n]: pairs (i, i + D/2) turned by position / theta^(2i/D)."""
    half = x.shape[-1] // 2
    angles = positions.double()[:, None] * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def _layer(
    head: dict[str, Any], at: int, rows: Tensor, residual: Tensor, positions: Tensor, sees: Tensor, wrong: str
) -> Tensor:
    """One decoder layer [n, H], from the rows [n, …] that its projections read; ``sees`` is a mask [n, n]."""
    name = f"layers.{at}."
    attention = f"{name}self_attn."

    def projected(which: str) -> Tensor:
        found: Tensor = (rows @ head[f"{attention}{which}_proj"].T).unflatten(-1, (-1, head["size"]))
        return found

    query, key, value = projected("q"), projected("k"), projected("v")
    normed = f"{attention}q_norm" in head and wrong != "qk_norm"

    def turned(which: str, x: Tensor) -> Tensor:
        if normed and wrong == "qk_norm late":
            return _rms(head, f"{attention}{which}_norm", rotated(x, positions, head["theta"]))
        x = _rms(head, f"{attention}{which}_norm", x) if normed else x
        return rotated(x, positions, head["theta"])

    query, key = turned("q", query), turned("k", key)
    shared = query.shape[1] // key.shape[1]  # query heads that read one head of keys and values
    key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query, key) / head["size"] ** 0.5
    weights = scores.masked_fill(~sees, -torch.inf).softmax(-1)
    mixed = torch.einsum("hqk,khd->qhd", weights, value).flatten(1)
    out = residual + mixed @ head[f"{attention}o_proj"].T
    inner = _rms(head, f"{name}post_attention_layernorm", out)
    gate, up = inner @ head[f"{name}mlp.gate_proj"].T, inner @ head[f"{name}mlp.up_proj"].T
    found: Tensor = out + (gate * gate.sigmoid() * up) @ head[f"{name}mlp.down_proj"].T
    return found


def _outputs(head: dict[str, Any], embedded: Tensor, before: Tensor, positions: Tensor, wrong: str) -> Tensor:
    """[n, H] after the last layer, for the embeddings [n, H] of tokens and what comes before each [n, H]."""
    sees = torch.ones(len(before), len(before), dtype=torch.bool)
    if wrong != "look ahead":
        sees = sees.tril()
    normed = _rms(head, "layers.0.hidden_norm", before)
    parts = [_rms(head, "layers.0.input_layernorm", embedded), normed]
    rows = torch.cat(parts[::-1] if wrong == "order" else parts, -1)
    residual = normed if head["norm residual"] else before
    out = _layer(head, 0, rows, residual, positions, sees, wrong)
    for at in range(1, head["layers"]):
        out = _layer(head, at, _rms(head, f"layers.{at}.input_layernorm", out), out, positions, sees, wrong)
    return out


def _said(head: dict[str, Any], outputs: Tensor, wrong: str) -> Tensor:
    """Log-probabilities [n, V] over the target's vocabulary."""
    last = "verifier_norm" if wrong == "verifier_norm" else "norm"
    logits = (_rms(head, last, outputs) if head["norm logits"] else outputs) @ head["lm_head"].T
    logp = logits.log_softmax(-1)
    ids = torch.arange(logits.shape[-1])
    if not head["all"] or wrong == "d2t of all":
        ids = head["d2t"] if wrong == "d2t" else ids + head["d2t"]
    if wrong == "softmax":
        others = torch.zeros(len(logits), head["vocab"] - logits.shape[-1], dtype=torch.float64)
        logp = torch.cat([logits, others], -1).log_softmax(-1)[:, : logits.shape[-1]]
    return torch.full((len(logits), head["vocab"]), -torch.inf, dtype=torch.float64).index_copy(1, ids, logp)


@torch.inference_mode()
def dense(
    folder: Path, features: Tensor, tokens: Sequence[int], drafts: Sequence[int], embedding: Tensor, *, wrong: str = ""
) -> Tensor:
    """What a head says after a text and after each beginning of a path of drafts."""
    assert not wrong or wrong in WRONG, wrong
    head = _read(folder, wrong)
    target_own = wrong == "embedding" or "embed_tokens" not in head
    vectors = embedding.double() if target_own else head["embed_tokens"]
    text, count = [*tokens], len(drafts)
    if wrong == "shift":
        text, drafts = [text[0], *text[:-1]], [text[-1], *drafts][:count]
    positions = torch.arange(len(text) + count)
    if wrong == "position":
        positions[len(text) :] -= 1
    before = _fused(head, features.double(), wrong)

    def outputs(ids: Sequence[int]) -> Tensor:
        return _outputs(head, vectors[torch.tensor(ids)], before, positions[: len(ids)], wrong)

    if "mask" in head and wrong != "mask fed back":
        ids = [*text, *(drafts if wrong == "mask embedding" else [head["mask"]] * count)]
        masks = head["mask_hidden"][0].expand(count, -1)
        fused = masks @ head["fc"].T if wrong == "mask without norms" else _fused(head, masks, wrong)
        before = torch.cat([before, fused])
        return _said(head, outputs(ids)[len(text) - 1 :], wrong)
    outcome = []
    for upto in range(count + 1):
        own = [head["mask"]] * count if "mask" in head else drafts
        last = outputs([*text, *own[:upto]])[-1:]
        outcome.append(_said(head, last, wrong))
        fed = _rms(head, "norm", last) if head["norm fed back"] else last
        if wrong == "fc_norm fed back":
            fed = _rms({**head, "fc_norm": head["fc_norm"][: fed.shape[1]]}, "fc_norm", fed)
        before = torch.cat([before, fed])
    return torch.cat(outcome)


# ------------------------------------------------------------------ the tree


def expand(
    say: Callable[[tuple[int, ...]], Tensor], width: int, depth: int, budget: int
) -> list[tuple[tuple[int, ...], float]]:
    """EAGLE-2's dynamic tree: (path, total log-probability) of its rows, the best first, the root left out."""
    scored: list[tuple[tuple[int, ...], float]] = []
    extended: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for _ in range(depth):
        level = []
        for path, total in extended:
            outcome = say(path)
            best, ids = outcome.topk(min(width, len(outcome)))
            pairs = zip(ids.tolist(), best.tolist(), strict=True)
            level += [((*path, token), total + logp) for token, logp in pairs if logp > -torch.inf]
        scored += level
        extended = sorted(level, key=lambda each: -each[1])[:width]
    return sorted(scored, key=lambda each: -each[1])[: budget - 1]


# ------------------------------
# Suffix decoding, Token Recycling, SAM-Decoding and LogitSpec as their rules: plain searches over lists, no index.
#
# Each one has ``begin(prompt)``, ``observe(fed, result)`` with the tokens of the rows that the forward was over, and
# ``draft()``: tokens and parents of the next tree.


#: Tokens and parents, row 0 the root.
Tree: TypeAlias = tuple[list[int], list[int]]
Tokens: TypeAlias = tuple[int, ...]


def chain(tokens: Sequence[int]) -> Tree:
    """Each token under the one before."""
    return list(tokens), list(range(-1, len(tokens) - 1))


def starts(wanted: list[int], text: list[int]) -> list[int]:
    """Where it occurs in a text, first place first."""
    size = len(wanted)
    return [at for at in range(len(text) - size + 1) if text[at : at + size] == wanted]


# ---------------------------------------------------------------- suffix


class SuffixTree:
    """Suffix tree: its sequences, and of each string what happened to its children, in the order in which it did."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.sequences: dict[int, list[int]] = {}
        self.journal: dict[Tokens, list[tuple[int, int]]] = {}  # string -> (+1 or -1, child)

    def add(self, owner: int, token: int) -> None:
        """One more token after a sequence."""
        before = tuple(self.sequences[owner])
        for length in range(1, min(len(before), self.depth - 1) + 1):
            self.journal.setdefault(before[-length:], []).append((1, token))
        self.sequences[owner].append(token)

    def forget(self, owner: int) -> None:
        """A sequence goes, its suffixes from its first token on."""
        gone = self.sequences.pop(owner)
        for first in range(len(gone)):
            for child in range(first + 1, min(len(gone), first + self.depth)):
                self.journal[tuple(gone[first:child])].append((-1, gone[child]))

    def count(self, string: Tokens) -> int:
        """Places where it occurs."""
        return sum(len(starts(list(string), sequence)) for sequence in self.sequences.values())

    def children(self, string: Tokens) -> list[int]:
        """What followed it, most frequent first: all that happened, once more."""
        order, counts = list[int](), dict[int, int]()
        for change, child in self.journal.get(string, []):
            if change > 0 and child not in order:
                order.append(child)
                counts[child] = 1
            elif change > 0:
                place = order.index(child)
                if place > 0 and counts[order[place - 1]] <= counts[child] + 1:
                    alike = counts[order[place - 1]]
                    order.remove(child)
                    order.insert([counts[other] for other in order].index(alike), child)
                counts[child] += 1
            else:
                after = max(place for place, other in enumerate(order) if counts[other] == counts[child])
                order.remove(child)
                order.insert(after, child)
                counts[child] -= 1
                if counts[child] == 0:
                    order.remove(child)
        return order


class SuffixRow:
    """What the requests of a row share: a tree of their outputs, with places for so many of them."""

    def __init__(self, depth: int, most: int) -> None:
        self.tree = SuffixTree(depth)
        self.most = most
        self.begun = 0

    def begin(self) -> int:
        """A request's number; it has the newest place, and the oldest one's is lost where there are too many."""
        self.begun += 1
        if self.most:
            self.tree.sequences[self.begun] = []
        if len(self.tree.sequences) > self.most:
            self.tree.forget(min(self.tree.sequences))
        return self.begun

    def add(self, request: int, token: int) -> None:
        """One more token of a request's output, if it has a place yet."""
        if request in self.tree.sequences:
            self.tree.add(request, token)


class Suffix:
    """Suffix decoding, in fractions, of which equal ones are equal."""

    def __init__(self, options: Any, row: SuffixRow | None = None) -> None:
        self.options = options
        self.row = SuffixRow(options.depth, 0) if row is None else row
        self.text = SuffixTree(options.depth)
        self.text.sequences[0] = []
        self.least = Fraction(str(options.min_prob))  # as it is written: 0.1 is a tenth
        self.score = Fraction(0)

    def begin(self, prompt: Sequence[int]) -> None:
        self.number = self.row.begin()
        for token in prompt:
            self.text.add(0, token)

    def observe(self, fed: Sequence[int], result: StepResult) -> None:
        for token in result.emitted:
            self.text.add(0, token)
            self.row.add(self.number, token)

    def draft(self) -> Tree:
        text = self.text.sequences[0]
        local, own = self.best(self.text)
        earlier, shared = self.best(self.row.tree)
        self.score, (tokens, parents) = (local, own) if local >= earlier else (earlier, shared)
        return [text[-1], *tokens], [-1, *parents]

    def best(self, tree: SuffixTree) -> tuple[Fraction, Tree]:
        """The drafts of all match lengths: the highest score, of equal ones the longest match."""
        options, context = self.options, tuple(self.text.sequences[0][-self.options.depth :])
        found: tuple[Fraction, Tree] = Fraction(0), ([], [])
        for length in range(1, len(context)):
            match = context[-length:]
            if tree.count(match) == 0:
                break
            budget = max(0, min(options.draft_length, int(length * options.factor + options.offset + 1e-6)))
            drafted = (self.grown if options.tree else self.followed)(tree, match, budget)
            if drafted[0] >= found[0]:
                found = drafted
        return found

    def followed(self, tree: SuffixTree, string: Tokens, budget: int) -> tuple[Fraction, Tree]:
        """The most frequent child of the most frequent child, and so on."""
        tokens, prob, score = list[int](), Fraction(1), Fraction(0)
        while len(tokens) < budget and (children := tree.children(string)):
            child = (*string, children[0])
            prob *= Fraction(tree.count(child), tree.count(string))
            if prob < self.least:
                break
            tokens.append(children[0])
            score += prob
            string = child
        return score, (tokens, list(range(len(tokens))))

    def grown(self, tree: SuffixTree, string: Tokens, budget: int) -> tuple[Fraction, Tree]:
        """The most probable of all children seen so far, and so on."""
        tokens, parents, score = list[int](), list[int](), Fraction(0)
        # Probability, string that ends with the token, row that it hangs under.
        waiting = list[tuple[Fraction, Tokens, int]]()

        def wait(prob: Fraction, string: Tokens, row: int) -> None:
            for token in tree.children(string):
                likely = prob * Fraction(tree.count((*string, token)), tree.count(string))
                if likely < self.least:
                    break
                waiting.append((likely, (*string, token), row))

        wait(Fraction(1), string, 0)
        while len(tokens) < budget and waiting:
            first = max(waiting, key=lambda one: one[0])  # of equal ones the first in the list
            waiting.remove(first)
            prob, string, parent = first
            tokens.append(string[-1])
            parents.append(parent)
            score += prob
            wait(prob, string, len(tokens))
        return score, (tokens, parents)


# ------------------------------------------------------------- recycling

#: The published tree "2.2.2": how many children a node has, by its ranks; those not named have none.
_CHILDREN = {
    8: "- 0 00", 5: "000", 4: "1", 3: "2 01 0000", 2: "3 02 10 001 00000",
    1: "4 5 6 7 03 04 05 06 07 11 20 30 40 50 002 003 004 010 020 100 200 300 0001 0002 0010 0100 1000 00010",
}  # fmt: skip
TREE_222 = [
    (*(int(rank) for rank in name.strip("-")), child)
    for number, names in _CHILDREN.items()
    for name in names.split()
    for child in range(number)
]


class Recycling:
    """Token Recycling with a tree of ranks; ``matrix`` is what earlier requests left."""

    def __init__(
        self, options: Any, nodes: Iterable[Sequence[int]], matrix: dict[int, list[int]] | None = None
    ) -> None:
        self.matrix = {} if matrix is None else matrix
        self.options = options
        dear = sorted(map(tuple, nodes), key=lambda node: (sum(rank + 1 for rank in node), len(node), node))
        self.nodes: list[Tokens] = sorted(dear[: options.budget - 1], key=lambda node: (len(node), node))

    def begin(self, prompt: Sequence[int]) -> None:
        pass

    def observe(self, fed: Sequence[int], result: StepResult) -> None:
        assert result.top is not None
        for token, best in zip(fed, result.top[1].tolist(), strict=True):
            self.matrix[token] = best
        self.root = result.emitted[-1]

    def draft(self) -> Tree:
        tokens, parents = [self.root], [-1]
        rows: dict[Tokens, int] = {(): 0}
        for node in self.nodes:
            if node[:-1] not in rows:
                continue
            above = tokens[rows[node[:-1]]]
            if above in self.matrix:
                token = self.matrix[above][node[-1]]
            elif self.options.unknown == "zero":
                token = 0
            else:
                continue
            rows[node] = len(tokens)
            tokens.append(token)
            parents.append(rows[node[:-1]])
        return tokens, parents


# ------------------------------------------------------------------- sam


class Sam:
    """SAM-Decoding; the corpus is the texts with the separator after each."""

    def __init__(self, options: Any, vocab: int, texts: Sequence[Sequence[int]] | None, separator: int) -> None:
        self.options, self.vocab, self.separator = options, vocab, separator
        self.corpus = [token for text in texts or [] for token in [*text, separator]]
        self.text = list[int]()

    def begin(self, prompt: Sequence[int]) -> None:
        self.text += prompt

    def observe(self, fed: Sequence[int], result: StepResult) -> None:
        self.text += result.emitted

    def match(self, searched: list[int]) -> tuple[int, int]:
        """How many of the last tokens occur before the end of a text, and where they first end; 0, 0 if none do."""
        for length in range(len(self.text), 0, -1):
            for at in starts(self.text[-length:], searched[:-1])[:1]:
                if not self.options.full_only or at + length + self.options.draft_length <= len(searched):
                    return length, at + length
        return 0, 0

    def draft(self) -> Tree:
        worth, end = self.match(self.text)
        static, after = self.match(self.corpus)
        if static - self.options.len_bias > worth:
            worth = static - self.options.len_bias
            copied = self.corpus[after:]
            if self.separator in copied:
                copied = copied[: copied.index(self.separator) + 1]
            copied = list(takewhile(lambda token: 0 <= token < self.vocab, copied))
        else:
            copied = self.text[end:]
        longest = min(self.options.draft_length, int(self.options.alpha * worth))
        return chain([self.text[-1], *copied[:longest]])


# ------------------------------------------------------------- logitspec


class LogitSpec:
    """LogitSpec: branches under the root, of which those that begin alike share rows."""

    def __init__(self, options: Any) -> None:
        self.options = options
        self.text = list[int]()

    def begin(self, prompt: Sequence[int]) -> None:
        self.text += prompt

    def observe(self, fed: Sequence[int], result: StepResult) -> None:
        assert result.top is not None
        self.text += result.emitted
        self.candidates = result.top[1].tolist()[result.path[-1]][: self.options.budget]

    def look(self, ngram: list[int]) -> list[int]:
        """What followed an n-gram where most tokens did, of such places the last; nothing if nothing did."""
        following = [
            self.text[at + len(ngram) :][: self.options.draft_length]
            for at in starts(ngram, self.text)
            if at + len(ngram) < len(self.text)
        ]
        return max(reversed(following), key=len, default=[])

    def first(self, text: list[int]) -> list[int]:
        """What followed the longest of the last n-grams of a text that anything followed."""
        for size in range(self.options.max_ngram, 0, -1):
            if size <= len(text) and (found := self.look(text[-size:])):
                return found
        return []

    def draft(self) -> Tree:
        root = self.text[-1]
        room = self.options.budget - 1
        branches = [self.first(self.text)[:room]]
        room -= len(branches[0])
        for rank, token in enumerate(self.candidates):
            if token != root and room > 0:
                longest = 4 if rank <= 8 else 3 if rank <= 32 else 1
                branches.append([token, *self.first([*self.text, token])][:longest][:room])
                room -= len(branches[-1])
        tokens, parents = [root], [-1]
        for branch in branches:
            row = 0
            for token in branch:
                there = [below for below in range(len(tokens)) if parents[below] == row and tokens[below] == token]
                if not there:
                    there = [len(tokens)]
                    tokens.append(token)
                    parents.append(row)
                row = there[0]
        return tokens, parents


# ------------------------------------------------------------ comparison


class Both:
    """Both: a decoder and its oracle on the same request, who have to draft the same."""

    def __init__(self, decoder: Any, oracle: Any) -> None:
        self.decoder, self.oracle = decoder, oracle

    def begin(self, prompt: Sequence[int]) -> None:
        self.text = list(prompt)
        assert self.decoder.begin(list(prompt)) is None
        self.oracle.begin(list(prompt))

    def observe(self, fed: Sequence[int], result: StepResult) -> None:
        self.text += result.emitted
        self.decoder.observe(result)
        self.oracle.observe(fed, result)

    def draft(self) -> Tree:
        tree = self.decoder.draft()
        drafted = list(tree.tokens), list(tree.parents)
        assert drafted == self.oracle.draft(), (self.oracle.options, self.text)
        assert tree.accept is None
        if isinstance(self.oracle, Suffix):
            assert abs(self.decoder.score - self.oracle.score) <= 1e-9, (self.oracle.options, self.text)
        return drafted

    def after(self, prompt: Sequence[int], result: StepResult) -> Tree:
        """The first draft, after the prefill."""
        self.begin(prompt)
        self.observe(prompt[-1:], result)
        return self.draft()

    def other(self, tokens: list[int], parents: list[int], result: StepResult) -> Tree:
        """The draft after a forward over another decoder's tree."""
        self.decoder.instead(TokenTree(tokens, parents))
        self.observe(tokens, result)
        return self.draft()


# ------------------------------
# A trajectory and a round, plainly, from a request as its line of JSON has it, by none of the code's own modules.


LETTERS = string.ascii_lowercase + string.ascii_uppercase + string.digits


def states(line: dict[str, Any]) -> list[list[tuple[int, int, int, str]]]:
    """Of each forward the cells of its state: position, row, token, mark."""
    answer, trace = line["output_ids"], line["tokens"]
    fed: list[dict[int, tuple[int, int, bool, bool]]] = []  # position -> row, token, accepted, drawn at random
    at = 0
    for draft, kept in zip(trace["drafts"], line["accepted_lengths"], strict=True):
        tokens = [answer[at], *draft["ids"]]
        parents = [-1, *(draft["parents"] if draft["parents"] is not None else range(len(draft["ids"])))]
        line_of_rows = [0, *draft["path"]]
        while True:
            below = [
                row
                for row in range(1, len(tokens))
                if parents[row] == line_of_rows[-1] and row not in draft["draft_only"]
            ]
            if not below:
                break
            line_of_rows.append(min(below))
        state = {}
        for depth, row in enumerate(line_of_rows):
            if at + depth < len(answer):
                random = row > 0 and trace["words"][LETTERS.index(draft["origins"][row - 1])] == "noise"
                state[at + depth] = row, tokens[row], row in draft["path"], random
        fed.append(state)
        at += kept
    return [
        [(place, row, token, mark(fed, number, place, answer)) for place, (row, token, _, _) in sorted(state.items())]
        for number, state in enumerate(fed)
    ]


def mark(fed: list[dict[int, tuple[int, int, bool, bool]]], number: int, place: int, answer: list[int]) -> str:
    """What became of one token."""
    row, token, accepted, random = fed[number][place]
    if row == 0:
        return "root"
    if accepted:
        return "accepted"
    if token == answer[place]:
        by = [later for later in range(number + 1, len(fed)) if place in fed[later] and fed[later][place][2]]
        right = by and all(
            place in fed[between] and fed[between][place][1] == answer[place] for between in range(number, by[0])
        )
        return "stationary" if right and not random else "right"
    return "misplaced" if in_a_run(fed[number], place, answer) else "wrong"


def in_a_run(state: dict[int, tuple[int, int, bool, bool]], place: int, answer: list[int]) -> bool:
    """Whether three tokens around this one, none in its own place, follow each other in the answer."""

    def off(at: int) -> bool:
        return at in state and state[at][0] > 0 and not state[at][2] and state[at][1] != answer[at]

    for start in (place - 2, place - 1, place):
        three = range(start, start + 3)
        if all(map(off, three)):
            outcome = [state[at][1] for at in three]
            if any(answer[begin : begin + 3] == outcome for begin in range(len(answer) - 2)):
                return True
    return False


def missed(line: dict[str, Any], number: int) -> set[int]:
    """The rows of a forward, from 1, that the drafter liked best where another or none was accepted."""
    draft = line["tokens"]["drafts"][number - 1]
    scores = draft.get("scores")
    if scores is None:
        return set()
    parents = draft["parents"] if draft["parents"] is not None else list(range(len(draft["ids"])))
    found = set()
    for node in [0, *draft["path"]]:
        picks = [
            (-scores[row - 1], row)
            for row in range(1, len(parents) + 1)
            if parents[row - 1] == node and row not in draft["draft_only"] and scores[row - 1] is not None
        ]
        taken = {draft["ids"][row - 1] for row in draft["path"] if parents[row - 1] == node}
        if picks and draft["ids"][min(picks)[1] - 1] not in taken:
            found.add(min(picks)[1])
    return found


# ------------------------------
# EvalPlus's own verdicts, by its code in a process of its own.


# In a process of its own: its children inherit the address space, and its memory limit counts it.
_EVALPLUS = """
import json, sys
from evalplus.data.mbpp import mbpp_deserialize_inputs
from evalplus.eval._special_oracle import MBPP_OUTPUT_NOT_NONE_TASKS
from evalplus.evaluate import check_correctness
from evalplus.gen.util import trusted_exec
out, sys.stdout = sys.stdout, sys.stderr
for line in sys.stdin:
    dataset, problem, solutions = json.loads(line)
    expected = {}
    for kind in ("base", "plus"):
        if dataset == "mbpp":
            problem[kind + "_input"] = mbpp_deserialize_inputs(problem["task_id"], problem[kind + "_input"])
        expected[kind], expected[kind + "_time"] = trusted_exec(
            problem["prompt"] + problem["canonical_solution"], problem[kind + "_input"], problem["entry_point"],
            record_time=True, output_not_none=problem["entry_point"] in MBPP_OUTPUT_NOT_NONE_TASKS,
        )
    found = []
    for solution in solutions:
        said = check_correctness(dataset, 0, problem, solution, expected, fast_check=True, min_time_limit=4.0)
        base, plus = said["base"][0] == "pass", said["plus"][0] == "pass"
        found.append([base, base and plus])
    out.write(json.dumps(found) + "\\n")
    out.flush()
"""


def evalplus(jobs: Sequence[tuple[str, dict[str, Any], list[str]]]) -> list[list[list[bool]]]:
    """[base, base and plus] of each solution of each job (data set, problem, solutions)."""
    lines = "".join(json.dumps(job) + "\n" for job in jobs)
    done = subprocess.run([sys.executable, "-c", _EVALPLUS], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


# ------------------------------
# lm-eval's own run on answers that are there already: what our verdicts and prompts are held against.


def needs(package: str) -> pytest.MarkDecorator:
    """Skips the tests of a module without a package of the extra ``eval``, and does not import it to find that out."""
    return pytest.mark.skipif(find_spec(package) is None, reason="needs pip install 'specbench-llm[eval]'")


def _replay(answer: Callable[[int], str]) -> Any:
    """A model whose answers are written beforehand, by document; keeps the requests it gets."""
    from lm_eval.api.model import LM

    class Replay(LM):
        requests: Mapping[int, tuple[str, dict[str, Any]]]

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            self.requests = {request.doc_id: request.args for request in requests}
            return [answer(request.doc_id) for request in requests]

        def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
            raise NotImplementedError

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> Any:
            raise NotImplementedError

    return Replay()


def lm_eval_run(
    config: str, data: dict[str, Path], folder: Path, answer: Callable[[int], str], limit: int | None, **options: Any
) -> tuple[Any, dict[str, dict[int, dict[str, Any]]]]:
    """``simple_evaluate`` on one of lm-eval's tasks, with its data from files."""
    import datasets
    import lm_eval
    import lm_eval.tasks

    datasets.disable_progress_bars()
    files = {split: str(path) for split, path in data.items()}
    (folder / "replayed.yaml").write_text(
        f"include: {Path(lm_eval.tasks.__file__).parent / config}\ntask: replayed\ndataset_path: json\n"
        f"dataset_name: null\ndataset_kwargs: {{data_files: {files}, cache_dir: {folder / 'cache'}}}\n"
    )
    model = _replay(answer)
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bars
        manager = lm_eval.tasks.TaskManager(include_path=[str(folder)], include_defaults=False)
        options |= {"bootstrap_iters": 0, "log_samples": True, "limit": limit}
        found = lm_eval.simple_evaluate(model=model, tasks=["replayed"], task_manager=manager, **options)
    samples: dict[str, dict[int, dict[str, Any]]] = {}
    for sample in found["samples"]["replayed"]:
        samples.setdefault(sample["filter"], {})[sample["doc_id"]] = sample
    return model, samples


# ------------------------------
# Tasks of lm-eval on made data: a multiple choice, texts for a perplexity, and questions to be answered.


CHOICE, ROLLING, ANSWER = "made_choice", "made_rolling", "made_answer"

_QUESTIONS = [f"What is {n} plus {n + 3}?" for n in range(8)]
_DOCS: dict[str, list[dict[str, Any]]] = {
    CHOICE: [
        {"question": text, "choices": [f"{2 * n}", f"{2 * n + 3}", "a great many of them"], "gold": 1}
        for n, text in enumerate(_QUESTIONS)
    ],
    # The last ones are longer than the windows and the forwards of the tests.
    ROLLING: [{"text": " ".join(f"{n} geese, {k} ducks;" for k in range(n + 1))} for n in range(7)],
    ANSWER: [{"question": text, "answer": f"{2 * n + 3}"} for n, text in enumerate(_QUESTIONS)],
}
_FILES: dict[str, dict[str, Any]] = {
    CHOICE: {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}\nAnswer:",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{gold}}",
        "fewshot_split": "test",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        "metadata": {"version": 3.0},
    },
    ROLLING: {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": name} for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")],
        "metadata": {"version": 1.0},
    },
    ANSWER: {
        "output_type": "generate_until",
        "doc_to_text": "Q: {{question}}\nA:",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n", "e"], "max_gen_toks": 12, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
        "metadata": {"version": 1.0},
    },
}


def write_tasks(folder: Path, names: Sequence[str] = tuple(_FILES), changes: Mapping[str, Any] | None = None) -> Path:
    """Task files and their data in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(doc) + "\n" for doc in _DOCS[name]))
        fields = {
            "task": name, "dataset_path": "json", "test_split": "test",
            "dataset_kwargs": {"data_files": {"test": str(data)}}, **_FILES[name], **(changes or {}),
        }  # fmt: skip
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(fields))
    return folder


@contextmanager
def caches_in(folder: Path) -> Iterator[None]:
    """The copies that datasets makes of such files go into a folder, and not into the user's."""
    import datasets

    with mock.patch.object(datasets.config, "HF_DATASETS_CACHE", folder):
        yield
