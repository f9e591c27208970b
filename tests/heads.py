"""Small draft heads, and what a head computes written down twice: in plain words, and in one forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specbench.methods.jetspec.config import HeadConfig
from specbench.methods.jetspec.head import DraftHead

HIDDEN, HEADS, KV_HEADS, SIZE = 24, 4, 2, 8
TINY: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": HIDDEN, "intermediate_size": 40,
    "num_hidden_layers": 3, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": SIZE,
    "num_target_layers": 12, "block_size": 6, "rope_theta": 1000000, "rope_scaling": None, "rms_norm_eps": 1e-6,
    "vocab_size": 50, "dflash_config": {"mask_token_id": 49, "causal_head": True},
}  # fmt: skip


def head(causal: bool = True, seed: int = 0) -> DraftHead:
    """A small head in float64 whose weights are large enough that everything in it matters."""
    config = HeadConfig.from_json({**TINY, "dflash_config": {"mask_token_id": 49, "causal_head": causal}})
    made = DraftHead.random(config, dtype=torch.float64, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            noise = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            parameter.copy_(1 + 0.3 * noise if parameter.dim() == 1 else 0.3 * noise)
    return made


# ------------------------------------------------------------------ the same in plain words, one sequence, one position


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


def rotate(x: Tensor, position: int) -> Tensor:
    """A vector [D] at a position: pairs (i, i + D/2) turned by position / theta^(2i/D)."""
    half = len(x) // 2
    angle = position * 1e6 ** (-torch.arange(half, dtype=torch.float64) / half)
    a, b = x[:half], x[half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()])


def plain(weights: dict[str, Tensor], features: Tensor, block: Tensor, causal: bool) -> Tensor:
    """The head as its papers describe it, with loops in place of shapes.

    Args:
        weights: by published name.
        features: [n, T × H] of all tokens before the anchor.
        block: [R, H] embeddings of [anchor, MASK, …].
        causal: rows see those before them, or all.

    Returns:
        [R, H] behind the last norm.
    """
    context = rms(features @ weights["fc.weight"].T, weights["hidden_norm.weight"])
    n, rows = len(context), block
    for layer in range(3):
        w = {name.removeprefix(f"layers.{layer}."): value for name, value in weights.items()}
        inner = rms(rows, w["input_layernorm.weight"])
        seen = torch.cat([context, inner])  # the context has no norm of the layer

        def heads(x: Tensor, name: str, w: dict[str, Tensor] = w) -> Tensor:
            return (x @ w[f"self_attn.{name}_proj.weight"].T).unflatten(-1, (-1, SIZE))

        q, k, v = heads(inner, "q"), heads(seen, "k"), heads(seen, "v")
        q, k = rms(q, w["self_attn.q_norm.weight"]), rms(k, w["self_attn.k_norm.weight"])
        mixed = torch.zeros(len(rows), HEADS, SIZE, dtype=torch.float64)
        for i in range(len(rows)):
            sees = n + (i + 1 if causal else len(rows))
            for h in range(HEADS):
                kv = h // (HEADS // KV_HEADS)
                turned = torch.stack([rotate(k[j, kv], j) for j in range(sees)])
                scores = turned @ rotate(q[i, h], n + i) / SIZE**0.5
                mixed[i, h] = scores.softmax(0) @ v[:sees, kv]
        rows = rows + mixed.flatten(1) @ w["self_attn.o_proj.weight"].T
        inner = rms(rows, w["post_attention_layernorm.weight"])
        gate, up = inner @ w["mlp.gate_proj.weight"].T, inner @ w["mlp.up_proj.weight"].T
        rows = rows + (gate * gate.sigmoid() * up) @ w["mlp.down_proj.weight"].T
    return rms(rows, weights["norm.weight"])


def together(head: DraftHead, features: Tensor, block: Tensor, causal: bool) -> Tensor:
    """The head in one forward over concatenated context, as training uses it."""
    n, rows = len(features), len(block)
    context = head.project_context(head.fuse(features[None]), torch.arange(n)[None])
    mask = torch.ones(rows, n + rows, dtype=torch.bool)
    if causal:
        mask[:, n:] = torch.ones(rows, rows, dtype=torch.bool).tril()

    def attend(layer: int, module: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = (torch.cat(pair, dim=2) for pair in zip(context[layer], (key, value), strict=True))
        out: Tensor = torch.nn.functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, scale=module.scaling, enable_gqa=True
        )
        return out.transpose(1, 2)

    found: Tensor = head(block[None], n + torch.arange(rows)[None], attend)
    return found[0]
