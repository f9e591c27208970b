"""The parallel draft head: a few Qwen3 layers that read the target's features and draft a whole block in one pass.

JetSpec's head (arXiv:2606.18394, ``jetspec/models/draft_head.py``) and DFlash's (``dflash/model.py``) have the same
parameters; in JetSpec's a row of the block sees the rows before it, in DFlash's all of them. It owns neither embedding
nor LM head: both are the target's.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm

from specbench.engine.layers.pieces import PLAIN, Attend, Pieces, Store
from specbench.engine.rotary import ExactRotary
from specbench.methods.jetspec.config import HeadConfig
from specbench.models.draft_head import Head


class DraftHead(Head):
    """The head; its parameters have the published names.

    B sequences, R rows of a block, n context tokens, H the hidden size, T tapped layers.
    """

    CONFIG = HeadConfig

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        qwen3 = _qwen3(config)
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(len(config.taps) * hidden, hidden, bias=False)
        self.hidden_norm = Qwen3RMSNorm(hidden, eps=eps)
        self.layers = nn.ModuleList(Qwen3DecoderLayer(qwen3, index) for index in range(config.num_hidden_layers))
        self.norm = Qwen3RMSNorm(hidden, eps=eps)
        self.finish()

    @staticmethod
    def rotary(config: HeadConfig) -> nn.Module:
        return ExactRotary(_qwen3(config))

    def fuse(self, features: Tensor, pieces: Pieces = PLAIN) -> Tensor:
        """One vector a context token, shared by all layers: [B, n, T × H] of the tapped layers to [B, n, H]."""
        return pieces.norm(self.hidden_norm, self.fc(features))[0]

    def keep_context(self, fused: Tensor, positions: Tensor, store: Store, pieces: Pieces = PLAIN) -> None:
        """Hands the rotated keys and the values of context tokens, [B, KV heads, n, D] each, to ``store``.

        They come from the fused vector as it is: context passes no layer, and no input norm (JetSpec).

        ``fused``: [B, n, H] from :meth:`fuse`; ``positions``: [B, n], those of the tokens in their text.
        """
        rotary = self.rotary_emb(fused, positions)
        for index, layer in enumerate(self.layers):
            pieces.keep(index, layer.self_attn, fused, rotary, store)

    def project_context(self, fused: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """What :meth:`keep_context` hands on, for every layer."""
        found: list[tuple[Tensor, Tensor]] = []
        self.keep_context(fused, positions, lambda layer, key, value: found.append((key, value)))
        return found

    def forward(self, rows: Tensor, positions: Tensor, attend: Attend, pieces: Pieces = PLAIN) -> Tensor:
        """The block through all layers.

        ``rows`` [B, R, H]: the target's embeddings of [anchor, MASK, …]; ``positions`` [B, R]: the anchor's is the
        number of context tokens. Returns [B, R, H], normalised: times the target's LM head, row k scores the token k
        after the anchor.
        """
        rotary = self.rotary_emb(rows, positions)
        branch: Tensor | None = None  # what is still to be added to the rows
        for index, module in enumerate(self.layers):
            layer: Any = module
            inner, rows = pieces.norm(layer.input_layernorm, rows, branch)
            branch = pieces.attention(index, layer.self_attn, inner, rotary, attend)
            inner, rows = pieces.norm(layer.post_attention_layernorm, rows, branch)
            branch = pieces.mlp(layer.mlp, inner)
        return pieces.norm(self.norm, rows, branch)[0]


def _qwen3(config: HeadConfig) -> Qwen3Config:
    kinds = list(config.layer_types) or ["full_attention"] * config.num_hidden_layers
    return config.layer_config(
        Qwen3Config,
        use_sliding_window=config.sliding_window is not None,
        sliding_window=config.sliding_window,
        layer_types=kinds,
    )
