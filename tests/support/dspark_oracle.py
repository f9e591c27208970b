"""DSpark heads written down a second time: tiny files in each published layout, and what such a head says.

From the sources of DeepSpec, speculators, SpecForge, SGLang and vLLM alone: plain functions over dicts of tensors in
float64, every round computed anew, with no cache of keys and values. A loader that misreads a file in one of the ways
of :data:`WRONG` gets other numbers, and the oracle can take each of these ways itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from support.oracles import rms, rotated
from torch import Tensor

#: Log-probabilities [V] of the token after a path of drafts, and the confidence in it.
Say = Callable[[tuple[int, ...]], tuple[Tensor, Tensor | None]]
LAYOUTS = ("deepspec", "speculators", "specforge", "sglang", "vllm")

#: Ways to misread a head, each of which changes what it says where the head has what is misread.
WRONG: Mapping[str, str] = {
    "taps": "the ids of the layers in the sense of the other producers",
    "taps sorted": "the layers from low to high, not in the order given",
    "theta": "10000, which is the default",
    "eps": "1e-6, which most files say",
    "hidden_norm": "left out",
    "context normed": "the first layer's input norm over the context, too",
    "qk_norm": "left out",
    "qk_norm late": "after the rotation",
    "causal": "a row sees only the rows before it, or the whole block where it should not",
    "position": "the block one position too late",
    "row": "the row after the right one",
    "row before": "the row before the right one",
    "mask token": "the last token of the vocabulary",
    "anchor": "masked like the other rows",
    "embedding": "the target's, though the file has one",
    "lm_head": "the target's, though the file has one",
    "norm": "the last norm left out",
    "layers": "only the first",
    "markov": "left out",
    "markov at the anchor": "left out at the first position",
    "markov shift": "the token before the token before",
    "markov transposed": "W2 as the embedding, W1 as the projection",
    "markov ids": "W1 read at the draft's own id",
    "gate": "left out",
    "gate order": "the embedding before the output",
    "gate tanh": "in place of the sigmoid",
    "rnn state": "zero at every position",
    "rnn order": "candidate and output exchanged",
    "rnn keeps": "gate and 1 - gate exchanged",
    "rnn anchor": "the anchor's row not passed where it drafts nothing, and passed where it drafts",
    "confidence markov": "zeros in place of the embedding",
    "confidence order": "the embedding before the output",
    "confidence shift": "the embedding of the token before the token before",
    "confidence bias": "left out",
    "d2t": "as a map to the target's tokens, not as a difference",
    "softmax": "over the target's vocabulary, what cannot be drafted at a logit of 0",
}

#: What :func:`write_dspark` takes, and what it is when it is not given. None leaves a key out of the file.
KEYS: Mapping[str, Any] = {
    "seed": 0,
    "layers": 2,
    "vocab": 17,
    "draft_vocab": None,
    "target_layers": 8,
    "block": 4,
    "taps": (1, 5, 3),  # layers whose outputs are read, in the order of fc
    "mask": 11,
    "rank": 6,
    "kind": "vanilla",
    "confidence": True,
    "with_markov": True,
    "own": True,  # the file has an embedding and an LM head
    "anchored": True,  # the anchor's row drafts a token
    "says_anchored": True,  # the file has a key for it
    "causal": False,
    "theta": 1000.0,
    "eps": 0.02,
}
_HIDDEN, _HEADS, _KV, _SIZE = 32, 4, 2, 8


def write_dspark(folder: Path, layout: str, **given: Any) -> Path:
    """Writes ``config.json`` and ``model.safetensors`` of a random head, by :data:`KEYS`; returns the folder."""
    assert layout in LAYOUTS, layout
    assert set(given) <= set(KEYS), given
    keys = {**KEYS, **given}
    folder.mkdir(parents=True, exist_ok=True)
    config = {name: value for name, value in _config(layout, keys).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(_tensors(keys), folder / "model.safetensors")
    return folder


def _config(layout: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    body = {
        "model_type": "qwen3", "hidden_size": _HIDDEN, "intermediate_size": 48, "num_hidden_layers": keys["layers"],
        "num_attention_heads": _HEADS, "num_key_value_heads": _KV, "head_dim": _SIZE, "rms_norm_eps": keys["eps"],
        "vocab_size": keys["vocab"], "rope_theta": keys["theta"], "hidden_act": "silu", "attention_bias": False,
        "layer_types": ["full_attention"] * keys["layers"], "max_position_embeddings": 512,
    }  # fmt: skip
    markov = {"markov_rank": keys["rank"], "markov_head_type": keys["kind"] if keys["rank"] else None}
    confidence = {
        "enable_confidence_head": keys["confidence"],
        "confidence_head_with_markov": keys["with_markov"] if keys["confidence"] else None,
    }
    block = {"block_size": keys["block"], "mask_token_id": keys["mask"], "target_layer_ids": list(keys["taps"])}
    shown = keys["anchored"] if keys["says_anchored"] else None
    flat = {"num_target_layers": keys["target_layers"], "draft_vocab_size": keys["draft_vocab"]}
    flat |= {"causal": True} if keys["causal"] else {}
    if layout == "deepspec":
        kind = {"architectures": ["Qwen3DSparkModel"], "num_anchors": 8}
        return {**kind, **body, **flat, **block, **markov, **confidence}
    if layout == "vllm":
        return {
            "architectures": ["Qwen3DSparkModel"], **body, **flat, **block, **markov, **confidence,
            "dspark_bonus_anchor": not keys["anchored"],
        }  # fmt: skip
    if layout == "specforge":
        inner = {**block, "projector_type": "dspark", **markov, **confidence}
        del inner["block_size"]
        return {
            "architectures": ["DSparkDraftModel"], **body, **flat, "block_size": keys["block"], "dflash_config": inner,
        }  # fmt: skip
    if layout == "sglang":  # which does not ask whether the confidence head is enabled
        inner = {"markov_rank": keys["rank"], "markov_head_type": keys["kind"], **block}
        return {"architectures": ["DSparkDraftModel"], **body, **flat, "dspark_config": inner}
    name = "dspark" if keys["rank"] or keys["confidence"] else "dflash"
    return {
        "architectures": [f"{name}Speculator"], "speculators_model_type": name, "transformer_layer_config": body,
        "draft_vocab_size": keys["draft_vocab"] or keys["vocab"], "block_size": keys["block"],
        "aux_hidden_state_layer_ids": [layer + 1 for layer in keys["taps"]], "mask_token_id": keys["mask"],
        "sample_from_anchor": shown, "sliding_window_non_causal": False,
        **(markov | confidence if name == "dspark" else {}),
        "speculators_config": {
            "algorithm": name, "default_proposal_method": "greedy",
            "proposal_methods": [
                {"proposal_type": "greedy", "speculative_tokens": keys["block"] - (not keys["anchored"])}
            ],
        },
    }  # fmt: skip


def _tensors(keys: Mapping[str, Any]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(keys["seed"])

    # Large enough that everything in the head matters.
    def matrix(*shape: int) -> Tensor:
        return 0.3 * torch.randn(*shape, generator=generator)

    def norm(width: int) -> Tensor:
        return 1 + 0.3 * torch.randn(width, generator=generator)

    rank, vocab, drafts = keys["rank"], keys["vocab"], keys["draft_vocab"] or keys["vocab"]
    found = {"fc": matrix(_HIDDEN, len(keys["taps"]) * _HIDDEN), "hidden_norm": norm(_HIDDEN), "norm": norm(_HIDDEN)}
    for layer in range(keys["layers"]):
        name = f"layers.{layer}."
        for which, heads in (("q", _HEADS), ("k", _KV), ("v", _KV)):
            found[f"{name}self_attn.{which}_proj"] = matrix(heads * _SIZE, _HIDDEN)
        found[f"{name}self_attn.o_proj"] = matrix(_HIDDEN, _HEADS * _SIZE)
        found |= {f"{name}self_attn.{which}_norm": norm(_SIZE) for which in "qk"}
        found |= {f"{name}mlp.{which}_proj": matrix(48, _HIDDEN) for which in ("gate", "up")}
        found[f"{name}mlp.down_proj"] = matrix(_HIDDEN, 48)
        found |= {f"{name}{which}": norm(_HIDDEN) for which in ("input_layernorm", "post_attention_layernorm")}
    if keys["own"]:
        found |= {"embed_tokens": matrix(vocab, _HIDDEN), "lm_head": matrix(drafts, _HIDDEN)}
    if rank:
        found |= {"markov_head.markov_w1": 2 * matrix(vocab, rank), "markov_head.markov_w2": 2 * matrix(drafts, rank)}
        wide = {"gated": ("gate_proj", rank, _HIDDEN + rank), "rnn": ("joint_proj", 3 * rank, 2 * rank + _HIDDEN)}
        if keys["kind"] in wide:
            name, out, into = wide[keys["kind"]]
            found |= {f"markov_head.{name}": matrix(out, into)}
    tensors = {f"{name}.weight": tensor for name, tensor in found.items()}
    if rank and keys["kind"] in wide:
        tensors[f"markov_head.{name}.bias"] = matrix(out)
    if keys["confidence"]:
        into = _HIDDEN + (rank if keys["with_markov"] else 0)
        tensors |= {"confidence_head.proj.weight": matrix(1, into), "confidence_head.proj.bias": matrix(1)}
    if keys["draft_vocab"]:
        drafted = torch.randperm(vocab, generator=generator)[:drafts].sort().values
        tensors["d2t"] = drafted - torch.arange(drafts)
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, drafted, True)
    return tensors


# ------------------------------------------------------------------ what a file means


def read_dspark(folder: Path, wrong: str = "") -> dict[str, Any]:
    """A head as one flat dict: tensors without ``.weight``, and what the keys say."""
    config = json.loads((folder / "config.json").read_text())
    speculators = "speculators_model_type" in config
    flat = dict(config)
    for nested in ("transformer_layer_config", "dflash_config", "dspark_config"):
        flat |= config.get(nested, {})
    head: dict[str, Any] = {
        name.removesuffix(".weight"): tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    inputs = speculators != (wrong == "taps")
    ids = flat["aux_hidden_state_layer_ids"] if speculators else flat["target_layer_ids"]
    taps = [layer - 1 if inputs else layer for layer in ids]
    head["taps"] = sorted(taps) if wrong == "taps sorted" else taps
    head |= {"theta": 10000.0 if wrong == "theta" else flat["rope_theta"]}
    head |= {"eps": 1e-6 if wrong == "eps" else flat["rms_norm_eps"]}
    head |= {"layers": 1 if wrong == "layers" else flat["num_hidden_layers"], "block": flat["block_size"]}
    head |= {"mask": flat["vocab_size"] - 1 if wrong == "mask token" else flat["mask_token_id"]}
    head |= {"kind": flat.get("markov_head_type", "vanilla"), "vocab": flat["vocab_size"]}
    head |= {"causal": bool(flat.get("causal")) != (wrong == "causal")}
    tokens = [one["speculative_tokens"] for one in config.get("speculators_config", {}).get("proposal_methods", [])]
    # The anchor's row drafts a token, so that a block of 4 drafts 4 tokens, or it does not.
    anchored = flat.get("sample_from_anchor", not flat.get("dspark_bonus_anchor", False))
    head["anchored"] = tokens[0] == head["block"] if tokens and "sample_from_anchor" not in config else anchored
    return head


def drafts_of(folder: Path) -> int:
    """Tokens that a block drafts."""
    head = read_dspark(folder)
    return int(head["block"]) - (not head["anchored"])


# ------------------------------------------------------------------ what a head computes


def _rms(head: Mapping[str, Any], name: str, x: Tensor) -> Tensor:
    return rms(x, head[name], head["eps"])


def _body(head: Mapping[str, Any], features: Tensor, block: Tensor, wrong: str) -> Tensor:
    """[R, H] of a block's rows, after the last norm; ``features`` [n, T × H]; ``block`` [R, H] embeddings."""
    count, rows = len(features), len(block)
    context = features @ head["fc"].T
    context = context if wrong == "hidden_norm" else _rms(head, "hidden_norm", context)
    if wrong == "context normed":
        context = _rms(head, "layers.0.input_layernorm", context)
    positions = torch.arange(count + rows)
    if wrong == "position":
        positions[count:] += 1
    sees = torch.ones(rows, rows, dtype=torch.bool)
    sees = torch.cat([torch.ones(rows, count, dtype=torch.bool), sees.tril() if head["causal"] else sees], dim=1)
    out = block
    for at in range(head["layers"]):
        name = f"layers.{at}.self_attn."
        inner = _rms(head, f"layers.{at}.input_layernorm", out)
        every = torch.cat([context, inner])

        def heads(which: str, x: Tensor, where: Tensor | None, name: str = name) -> Tensor:
            found: Tensor = (x @ head[f"{name}{which}_proj"].T).unflatten(-1, (-1, _SIZE))
            if where is None:
                return found
            if wrong == "qk_norm":
                return rotated(found, where, head["theta"])
            if wrong == "qk_norm late":
                return _rms(head, f"{name}{which}_norm", rotated(found, where, head["theta"]))
            return rotated(_rms(head, f"{name}{which}_norm", found), where, head["theta"])

        query, key = heads("q", inner, positions[count:]), heads("k", every, positions)
        key, value = (x.repeat_interleave(_HEADS // _KV, dim=1) for x in (key, heads("v", every, None)))
        scores = torch.einsum("qhd,khd->hqk", query, key) / _SIZE**0.5
        weights = scores.masked_fill(~sees, -torch.inf).softmax(-1)
        out = out + torch.einsum("hqk,khd->qhd", weights, value).flatten(1) @ head[f"{name}o_proj"].T
        inner = _rms(head, f"layers.{at}.post_attention_layernorm", out)
        gate, up = (inner @ head[f"layers.{at}.mlp.{which}_proj"].T for which in ("gate", "up"))
        out = out + (gate * gate.sigmoid() * up) @ head[f"layers.{at}.mlp.down_proj"].T
    return out if wrong == "norm" else _rms(head, "norm", out)


def _latent(
    head: Mapping[str, Any], before: Tensor, output: Tensor, state: Tensor, wrong: str
) -> tuple[Tensor, Tensor]:
    """What the second Markov matrix multiplies, and the next state."""
    m = "markov_head."
    if head["kind"] == "gated" and wrong != "gate":
        parts = [before, output] if wrong == "gate order" else [output, before]
        raw = head[f"{m}gate_proj"] @ torch.cat(parts) + head[f"{m}gate_proj.bias"]
        return before * (raw.tanh() if wrong == "gate tanh" else raw.sigmoid()), state
    if head["kind"] == "rnn":
        state = torch.zeros_like(state) if wrong == "rnn state" else state
        raw = head[f"{m}joint_proj"] @ torch.cat([state, before, output]) + head[f"{m}joint_proj.bias"]
        gate, candidate, found = raw.chunk(3)
        candidate, found = (found, candidate) if wrong == "rnn order" else (candidate, found)
        gate = 1 - gate.sigmoid() if wrong == "rnn keeps" else gate.sigmoid()
        return found.tanh(), gate * state + (1 - gate) * candidate.tanh()
    return before, state


@torch.inference_mode()
def dense_dspark(
    folder: Path, features: Tensor, anchor: int, embedding: Tensor, lm_head: Tensor, *, wrong: str = ""
) -> Say:
    """What a head says after each path of drafts under a text, which it read once.

    ``features``: [n, T × H] of the text before the anchor.
    """
    assert not wrong or wrong in WRONG, wrong
    head = read_dspark(folder, wrong)
    vectors = head["embed_tokens"] if "embed_tokens" in head and wrong != "embedding" else embedding.double()
    ids = [head["mask"] if wrong == "anchor" else anchor, *[head["mask"]] * (head["block"] - 1)]
    outputs = _body(head, features.double(), vectors[torch.tensor(ids)], wrong)
    w1 = head.get("markov_head.markov_w2" if wrong == "markov transposed" else "markov_head.markov_w1")
    w2 = head.get("markov_head.markov_w1" if wrong == "markov transposed" else "markov_head.markov_w2")
    known = torch.arange(len(vectors))
    if "d2t" in head:
        known = head["d2t"] if wrong == "d2t" else torch.arange(len(head["d2t"])) + head["d2t"]

    @cache
    @torch.inference_mode()
    def say(drafts: tuple[int, ...]) -> tuple[Tensor, Tensor | None]:
        at = len(drafts)
        shift = {"row": 1, "row before": -1}.get(wrong, 0)
        row = (at + (not head["anchored"]) + shift) % len(outputs)
        path = [anchor, *drafts]
        output, bias, found = outputs[row], torch.zeros(len(known), dtype=torch.float64), None
        if w1 is not None and w2 is not None:
            own = {int(token): index for index, token in enumerate(known)}

            def before(place: int) -> Tensor:
                token = path[max(0, place)]
                return w1[own.get(token, 0) if wrong == "markov ids" and place > 0 else token]

            state = torch.zeros(w1.shape[1], dtype=torch.float64)
            if head["anchored"] == (wrong == "rnn anchor"):
                state = _latent(head, before(0), outputs[0], state, wrong)[1]
            back = 1 if wrong == "markov shift" else 0
            for place in range(at + 1):
                here = (place + (not head["anchored"]) + shift) % len(outputs)
                latent, state = _latent(head, before(place - back), outputs[here], state, wrong)
            if wrong != "markov" and not (wrong == "markov at the anchor" and at == 0):
                bias = w2 @ latent
        if "confidence_head.proj" in head:
            parts = [output]
            if head["confidence_head.proj"].shape[1] > len(output):
                assert w1 is not None
                embedded = w1[path[max(0, at - (wrong == "confidence shift"))]]
                embedded = torch.zeros_like(embedded) if wrong == "confidence markov" else embedded
                parts = [embedded, output] if wrong == "confidence order" else [output, embedded]
            bias_ = 0 if wrong == "confidence bias" else head["confidence_head.proj.bias"]
            found = (head["confidence_head.proj"] @ torch.cat(parts) + bias_).sigmoid()[0]
        weight = head["lm_head"] if "lm_head" in head and wrong != "lm_head" else lm_head.double()[known]
        logits = weight @ output + bias
        logp = logits.log_softmax(-1)
        if wrong == "softmax":
            rest = torch.zeros(head["vocab"] - len(logits), dtype=torch.float64)
            logp = torch.cat([logits, rest]).log_softmax(-1)[: len(logits)]
        return torch.full((head["vocab"],), -torch.inf, dtype=torch.float64).index_copy(0, known, logp), found

    return say
