"""EAGLE-3 heads written down a second time: tiny checkpoints in each producer's form, and what such a head says.

From the description of the formats alone: plain functions over dicts of tensors, float64, every row computed anew from
the first one on, nothing cached. Whoever misreads a format in one of the ways of :data:`WRONG` gets other numbers, and
the oracle can take each of these ways itself.

The original reads the outputs of layers 1, L // 2 - 1 and L - 4 and has one ``midlayer``, as SpecForge has, whose ids
are of layers whose outputs are read. speculators' are of layers whose inputs are read; its layers are ``layers.i``, and
what it says of them is a level deeper. P-EAGLE has ``layers.i`` too, and ids by who made it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

PRODUCERS = ("original", "specforge", "speculators", "peagle-specforge", "peagle-speculators")

#: Ways to misread a head, each of which changes what it says where the head has what is misread.
WRONG: Mapping[str, str] = {
    "taps": "the ids of the layers in the sense of the other producer",
    "taps sorted": "the layers from low to high, not in the order given",
    "residual": "norm_before_residual the other way round",
    "fed back": "normed where it is not, and not where it is",
    "norm_output": "the key in the sense of the other producer, its default too",
    "order": "the hidden part before the embedding",
    "shift": "the embedding of the token whose features these are, not of the one behind it",
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
    "qk_norm late": "behind the rotation",
    "layers": "only the first",
    "verifier_norm": "in place of the head's own last norm",
    "mask token": "its keys tried in the opposite order",
    "mask fed back": "the head's own output in place of mask_hidden, as in EAGLE-3",
    "mask embedding": "the drafts' own, as in EAGLE-3",
    "mask without norms": "mask_hidden straight into fc",
    "look ahead": "the rows of a pass see those behind them",
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
    "qk_norm": False,  # the layers are Qwen3's, with norms of queries and keys; speculators only
    "verifier_norm": False,  # the file has a tensor of this name; speculators only
    "maps": ("d2t", "t2d"),  # those in the file
    "rope": "theta",  # where the base of the rotation stands: "theta", "parameters", or nowhere: ""
    # Both far from what they are everywhere, so that a loader shows that does not ask the file.
    "theta": 1000.0,
    "eps": 0.02,
    "masks": {"mask_token_id": 95},  # of P-EAGLE, by key; a dot stands between the levels
}


def write(folder: Path, producer: str, **given: Any) -> Path:
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
    if named is None:
        behind = 0 if wrong != "taps" else 1
        found = [layer + behind for layer in (1, target_layers // 2 - 1, target_layers - 4)]
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
    said = config.get("norm_output")
    head["norm fed back"] = (feeds and bool(said)) != (wrong == "fed back")
    head["norm logits"] = feeds or said is not False
    if config.get("speculators_model_type") == "peagle" or "PEagleDraftModel" in config["architectures"]:
        flat = config | {f"dflash_config.{key}": value for key, value in config.get("dflash_config", {}).items()}
        head["mask"] = [flat[key] for key in _MASK_KEYS if key in flat][-1 if wrong == "mask token" else 0]
    return head


def _rms(head: dict[str, Any], name: str, x: Tensor) -> Tensor:
    """Of each vector of ``x``; the weight has one for all, or one for each of the last but one dimension."""
    weight: Tensor = head[name].view(-1, x.shape[-1])
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + head["eps"]).sqrt()


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


def _rotated(head: dict[str, Any], x: Tensor, positions: Tensor) -> Tensor:
    """Vectors [n, heads, D] at positions [n]: pairs (i, i + D/2) turned by position / theta^(2i/D)."""
    half = x.shape[-1] // 2
    angles = positions.double()[:, None] * head["theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
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
            return _rms(head, f"{attention}{which}_norm", _rotated(head, x, positions))
        return _rotated(head, _rms(head, f"{attention}{which}_norm", x) if normed else x, positions)

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
    """[n, H] behind the last layer, for the embeddings [n, H] of tokens and what comes before each [n, H]."""
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
    """What a head says behind a text and behind each beginning of a path of drafts.

    Args:
        folder: of the head.
        features: [n, taps × Ht], the outputs of :func:`taps` one beside the other.
        tokens: n ids, each the one behind the token that its features are of.
        drafts: a path: each draft hangs under the one before, the first under the text's last row.
        embedding: [V, Ht], the target's; for heads whose file has none.
        wrong: a way of :data:`WRONG` to misread the head.

    Returns:
        Natural log-probabilities [1 + drafts, V], minus infinity for tokens that cannot be drafted. Of P-EAGLE the rows
        of one pass, which know how many drafts come before them and not which.
    """
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
    said = []
    for upto in range(count + 1):
        own = [head["mask"]] * count if "mask" in head else drafts
        last = outputs([*text, *own[:upto]])[-1:]
        said.append(_said(head, last, wrong))
        fed = _rms(head, "norm", last) if head["norm fed back"] else last
        if wrong == "fc_norm fed back":
            fed = _rms({**head, "fc_norm": head["fc_norm"][: fed.shape[1]]}, "fc_norm", fed)
        before = torch.cat([before, fed])
    return torch.cat(said)


# ------------------------------------------------------------------ the tree


def expand(
    say: Callable[[tuple[int, ...]], Tensor], width: int, depth: int, budget: int
) -> list[tuple[tuple[int, ...], float]]:
    """EAGLE-2's dynamic tree: (path, total log-probability) of its rows, the best first, the root left out.

    Args:
        say: log-probabilities [V] behind a path of drafts.
        width: best tokens of a path that are looked at, and best paths of a level that are extended.
        depth: levels.
        budget: rows of the tree at most, the root counted.
    """
    scored: list[tuple[tuple[int, ...], float]] = []
    extended: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for _ in range(depth):
        level = []
        for path, total in extended:
            said = say(path)
            best, ids = said.topk(min(width, len(said)))
            pairs = zip(ids.tolist(), best.tolist(), strict=True)
            level += [((*path, token), total + logp) for token, logp in pairs if logp > -torch.inf]
        scored += level
        extended = sorted(level, key=lambda each: -each[1])[:width]
    return sorted(scored, key=lambda each: -each[1])[: budget - 1]
