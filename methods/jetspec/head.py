"""The parallel draft head: a few Qwen3 layers that read the target's features and draft a whole block in one pass.

JetSpec's head (arXiv:2606.18394, ``jetspec/models/draft_head.py``) and DFlash's (``dflash/model.py``) have the same
parameters; in JetSpec's a row of the block sees the rows before it, in DFlash's all of them. It owns neither embedding
nor LM head: both are the target's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm

from specbench.common import UsageError
from specbench.engine.layers.pieces import PLAIN, Attend, Pieces, Store
from specbench.engine.rotary import ExactRotary
from specbench.methods.jetspec.config import HeadConfig
from specbench.models import draft_head as heads
from specbench.models import head_files
from specbench.models.draft_head import Head


class DraftHead(Head):
    """The head; its parameters have the published names.

    B sequences, R rows of a block, n context tokens, H the hidden size, T tapped layers.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        qwen3 = _qwen3(config)
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(len(config.target_layer_ids) * hidden, hidden, bias=False)
        self.hidden_norm = Qwen3RMSNorm(hidden, eps=eps)
        self.layers = nn.ModuleList(Qwen3DecoderLayer(qwen3, index) for index in range(config.num_hidden_layers))
        self.norm = Qwen3RMSNorm(hidden, eps=eps)
        self.rotary_emb = self.rotary(config)
        self.map_draft_ids()

    @staticmethod
    def rotary(config: HeadConfig) -> nn.Module:
        return ExactRotary(_qwen3(config))

    def scorer(self, lm_head: Any) -> Any:
        """What makes scores [..., draft vocabulary] of the last norm's outputs: the target's LM head, or rows of it."""
        ids = self.draft_ids
        if ids is None:
            return lm_head
        weight, bias = lm_head.weight, lm_head.bias
        rows = nn.Linear(weight.shape[1], len(ids), bias=bias is not None, device="meta")
        rows.weight = nn.Parameter(weight[ids], requires_grad=False)
        if bias is not None:
            rows.bias = nn.Parameter(bias[ids], requires_grad=False)
        return rows

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

    @classmethod
    def load(
        cls, where: str | Path, target: Any = None, *, device: Any = "cpu", dtype: torch.dtype | None = None
    ) -> DraftHead:
        """A head from a folder or the hub.

        ``where``: a folder, or a hub id; ``::SUBFOLDER`` may follow. ``target``: the configuration that the head has to
        go with; None checks nothing. ``dtype``: None keeps what the file has.
        """
        return cls.read(head_files.find(str(where)), target, device=device, dtype=dtype)

    @classmethod
    def read(
        cls, files: head_files.HeadFiles, target: Any = None, *, device: Any = "cpu", dtype: torch.dtype | None = None
    ) -> DraftHead:
        """:meth:`load` of files that were found already."""
        text = None if target is None else target.get_text_config()
        config = HeadConfig.from_json(files.config, None if text is None else text.num_hidden_layers)
        if text is not None:
            check_target(config, text, files.name)
        tensors = files.tensors(device, dtype)
        tensors.pop("t2d", None)  # the same as d2t, asked the other way round
        return cls.filled(files.name, config, tensors, None if text is None else text.vocab_size, device)


def check_target(config: HeadConfig, target: Any, name: str) -> None:
    """Whether a head goes with a target."""
    sizes = {
        "hidden size": (config.hidden_size, target.hidden_size),
        "number of layers": (config.num_target_layers, target.num_hidden_layers),
    }
    if config.draft_vocab_size > target.vocab_size:
        raise UsageError(f"head {name} drafts {config.draft_vocab_size} tokens, the target has {target.vocab_size}")
    heads.check_target(name, sizes, config.mask_token_id, target.vocab_size)


def _qwen3(config: HeadConfig) -> Qwen3Config:
    kinds = list(config.layer_types) or ["full_attention"] * config.num_hidden_layers
    return Qwen3Config(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.rms_norm_eps,
        rope_parameters=dict(config.rope),
        max_position_embeddings=config.max_position_embeddings,
        hidden_act=config.hidden_act,
        attention_bias=config.attention_bias,
        use_sliding_window=config.sliding_window is not None,
        sliding_window=config.sliding_window,
        layer_types=kinds,
        vocab_size=1,  # it has no embedding
    )
