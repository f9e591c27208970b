"""The EAGLE-3 draft head: one decoder layer that reads the target's features and the embedding of the next token.

Li et al. 2025, arXiv:2503.01840, §3.1 and Figure 5. A row combines the target's features of a token with the embedding
of the token after it, and predicts the next token. A draft token has no features yet, so rows under it read the head's
own output instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from specbench.common import UsageError
from specbench.engine import PLAIN, Attend, ExactRotary, Pieces, Rotary
from specbench.heads import Head
from specbench.methods.eagle3.config import HeadConfig


class Attention(nn.Module):
    """Projections of a layer, named as in transformers' attention; those of the first layer read twice the width."""

    def __init__(self, config: HeadConfig, layer: int) -> None:
        super().__init__()
        self.layer_idx, self.head_dim, self.scaling = layer, config.head_dim, None
        slides = bool(config.layer_types) and config.layer_types[layer] == "sliding_attention"
        self.sliding_window = config.sliding_window if slides else None
        width, bias = config.hidden_size * (1 if layer else 2), config.attention_bias
        queries, keys = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
        self.q_proj = nn.Linear(width, queries, bias=bias)
        self.k_proj = nn.Linear(width, keys, bias=bias)
        self.v_proj = nn.Linear(width, keys, bias=bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=bias)
        if config.head_norms:
            self.q_norm = LlamaRMSNorm(config.head_dim, eps=config.rms_norm_eps)
            self.k_norm = LlamaRMSNorm(config.head_dim, eps=config.rms_norm_eps)


class Layer(nn.Module):
    """A decoder layer; the first one has a norm for each of its two inputs."""

    def __init__(self, config: HeadConfig, layer: int) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self._layer, self._norm_before_residual = layer, config.norm_before_residual
        self.self_attn = Attention(config, layer)
        self.mlp = LlamaMLP(_llama(config))
        self.input_layernorm = LlamaRMSNorm(hidden, eps=eps)
        self.post_attention_layernorm = LlamaRMSNorm(hidden, eps=eps)
        if layer == 0:
            self.hidden_norm = LlamaRMSNorm(hidden, eps=eps)

    def forward(
        self,
        rows: Tensor,
        branch: Tensor | None,
        embedded: Tensor,
        rotary: Rotary,
        attend: Attend,
        pieces: Pieces = PLAIN,
    ) -> tuple[Tensor, Tensor]:
        """Run rows [B, R, H] and their pending residual through the layer; return both.

        Only the first layer reads ``embedded`` [B, R, H].
        """
        if self._layer == 0:
            normed, rows = pieces.norm(self.hidden_norm, rows, branch)
            inner = torch.cat([pieces.norm(self.input_layernorm, embedded)[0], normed], dim=-1)
            rows = normed if self._norm_before_residual else rows
        else:
            inner, rows = pieces.norm(self.input_layernorm, rows, branch)
        mixed = pieces.attention(self._layer, self.self_attn, inner, rotary, attend)
        inner, rows = pieces.norm(self.post_attention_layernorm, rows, mixed)
        return rows, pieces.mlp(self.mlp, inner)


class DraftHead(Head):
    """The head; its parameters have speculators' names.

    Shapes: B sequences, R rows, H the head's width, T tapped layers of width Ht, Vd tokens that can be drafted.

    ``embeds``: the head has its own embedding; otherwise it uses the target's.
    """

    CONFIG = HeadConfig
    CONVERT = "python -m specbench.heads.convert"
    DTYPE_FIELD = "torch_dtype"
    IGNORED = ("t2d", "verifier_norm.weight", "verifier_lm_head.weight")  # needed by training only

    def __init__(self, config: HeadConfig, *, embeds: bool = False) -> None:
        super().__init__(config)
        hidden, eps, wide = config.hidden_size, config.rms_norm_eps, len(config.taps) * config.target_hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden) if embeds else None
        self.fc = nn.Linear(wide, hidden, bias=False)
        if config.norm_before_fc:
            self.input_norm = LlamaRMSNorm(wide, eps=eps)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(LlamaRMSNorm(config.target_hidden_size, eps=eps) for _ in config.taps)
        if config.parallel:
            self.mask_hidden = nn.Parameter(torch.zeros(1, 1, wide))
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.num_hidden_layers))
        self.norm = LlamaRMSNorm(hidden, eps=eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        self.finish()

    @staticmethod
    def rotary(config: HeadConfig) -> nn.Module:
        return ExactRotary(_llama(config))

    def fuse(self, features: Tensor) -> Tensor:
        """Fuse the target's features for the first layer: [..., T × Ht] to [..., H]. Not used for draft tokens."""
        if self.config.norm_before_fc:
            features = self.input_norm(features)
        if self.config.fc_norm:
            parts = features.unflatten(-1, (len(self.fc_norm), -1)).unbind(-2)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        fused: Tensor = self.fc(features)
        return fused

    def forward(
        self, before: Tensor, embedded: Tensor, positions: Tensor, attend: Attend, pieces: Pieces = PLAIN
    ) -> Tensor:
        """Run rows through all layers.

        ``before`` [B, R, H]: fused features of the token before each row's token, or :meth:`fed_back` of a draft's
        parent; ``embedded`` [B, R, H]: embeddings of the rows' tokens. Returns [B, R, H], before the final norm.
        """
        rotary = self.rotary_emb(before, positions)
        branch: Tensor | None = None
        for layer in self.layers:
            before, branch = layer(before, branch, embedded, rotary, attend, pieces)
        assert branch is not None
        return before + branch

    def fed_back(self, outputs: Tensor, pieces: Pieces = PLAIN) -> Tensor:
        """The input that replaces features for draft tokens under each row, from :meth:`forward`'s [B, R, H]."""
        return pieces.norm(self.norm, outputs)[0] if self.config.feeds_norm else outputs

    def scored(self, outputs: Tensor, pieces: Pieces = PLAIN) -> Tensor:
        """What the LM head reads, from :meth:`forward`'s [B, R, H]."""
        return pieces.norm(self.norm, outputs)[0] if self.config.norm_before_scores else outputs

    def scores(self, outputs: Tensor, pieces: Pieces = PLAIN) -> Tensor:
        """Logits [B, R, Vd] of the token after each row, from :meth:`forward`'s [B, R, H]."""
        found: Tensor = self.lm_head(self.scored(outputs, pieces))
        return found

    @classmethod
    def from_file(cls, name: str, config: HeadConfig, tensors: dict[str, Tensor]) -> dict[str, Any]:
        for old in [name for name in tensors if name.startswith("midlayer.")]:  # the original's one layer
            tensors[old.replace("midlayer.", "layers.0.", 1)] = tensors.pop(old)
        embeds = "embed_tokens.weight" in tensors
        if not embeds and config.hidden_size != config.target_hidden_size:
            raise UsageError(f"head {name} lacks embed_tokens.weight, and the target's has another width")
        return {"embeds": embeds}

    def to_file(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """In the original layout, which every engine reads."""
        found = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
        ids = self.draft_ids
        if ids is not None:  # the inverse of d2t, which other engines need
            known = torch.zeros(self.config.vocab_size, dtype=torch.bool)
            found["t2d"] = known.index_fill_(0, ids.cpu(), True)
        return found


def _llama(config: HeadConfig) -> LlamaConfig:
    return config.layer_config(LlamaConfig, mlp_bias=config.mlp_bias)
