"""The EAGLE draft head: one decoder layer over the target's last hidden state and the embedding of the next token.

Li et al. 2024, arXiv:2401.15077, §3.1; EAGLE-2 (arXiv:2406.16858) and HASS (arXiv:2408.15766) have the same head. A row
combines the hidden state of a token, after the target's final norm, with the embedding of the token after it. The
layer's output predicts the next hidden state: it goes to the target's LM head as it is, and stands for the hidden state
in the rows of draft tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen2Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

from specbench.common import UsageError
from specbench.engine import PLAIN, Attend, ExactRotary, Pieces
from specbench.heads import Head
from specbench.methods.eagle.config import HeadConfig

_NAMES = {"model.": "", "fusion_fc.": "fc.", "transformer.": "layers.0."}  # vLLM's prefix, and speculators' names


class DraftHead(Head):
    """The head; its parameters have the original's names.

    Shapes: B sequences, R rows, H the hidden size of head and target, V tokens.

    Args:
        embeds: the head has its own embedding; otherwise it uses the target's.
        scores: the head has its own LM head; otherwise it uses the target's.
        bias: ``fc`` has a bias; None decides by the configuration.
    """

    CONFIG = HeadConfig
    CONVERT = "python -m specbench.heads.convert"
    DTYPE_FIELD = "torch_dtype"

    def __init__(
        self, config: HeadConfig, *, embeds: bool = False, scores: bool = False, bias: bool | None = None
    ) -> None:
        super().__init__(config)
        hidden, llama = config.hidden_size, _llama(config)
        bias = config.bias is not False if bias is None else bias
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden) if embeds else None
        self.lm_head = nn.Linear(hidden, config.vocab_size, bias=False) if scores else None
        self.fc = nn.Linear(2 * hidden, hidden, bias=bias)
        layer = Qwen2DecoderLayer if config.qkv_bias else LlamaDecoderLayer
        self.layers = nn.ModuleList(layer(llama, index) for index in range(config.num_hidden_layers))
        first: Any = self.layers[0]
        del first.input_layernorm
        for each in self.layers:
            attention: Any = each.self_attn
            attention.sliding_window = None
        self.finish()

    @staticmethod
    def rotary(config: HeadConfig) -> nn.Module:
        return ExactRotary(_llama(config))

    @property
    def features(self) -> int:
        return int(self.config.hidden_size)

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def forward(
        self, before: Tensor, embedded: Tensor, positions: Tensor, attend: Attend, pieces: Pieces = PLAIN
    ) -> Tensor:
        """Run rows through all layers.

        ``before`` [B, R, H]: the target's hidden state of the token before each row's token, or the output of a draft's
        parent; ``embedded`` [B, R, H]: embeddings of the rows' tokens. Returns [B, R, H].
        """
        rotary = self.rotary_emb(before, positions)
        rows: Tensor = self.fc(torch.cat([embedded, before], dim=-1))
        branch: Tensor | None = None  # pending residual of the rows
        for index, module in enumerate(self.layers):
            layer: Any = module
            inner = rows
            if index:
                inner, rows = pieces.norm(layer.input_layernorm, rows, branch)
            branch = pieces.attention(index, layer.self_attn, inner, rotary, attend)
            inner, rows = pieces.norm(layer.post_attention_layernorm, rows, branch)
            branch = pieces.mlp(layer.mlp, inner)
        return rows if branch is None else rows + branch

    def fed_back(self, outputs: Tensor, pieces: Pieces = PLAIN) -> Tensor:
        return outputs

    def scored(self, outputs: Tensor, pieces: Pieces = PLAIN) -> Tensor:
        return outputs

    @classmethod
    def from_file(cls, name: str, config: HeadConfig, tensors: dict[str, Tensor]) -> dict[str, Any]:
        if any(stored.startswith("midlayer.") for stored in tensors):
            raise UsageError(f"cannot load head {name}: it is an EAGLE-3 head; draft with --method eagle3")
        for old, new in _NAMES.items():
            for stored in [stored for stored in tensors if stored.startswith(old)]:
                tensors[new + stored.removeprefix(old)] = tensors.pop(stored)
        return {
            "embeds": "embed_tokens.weight" in tensors,
            "scores": "lm_head.weight" in tensors,
            "bias": "fc.bias" in tensors if config.bias is None else config.bias,
        }


def _llama(config: HeadConfig) -> Any:
    if config.qkv_bias:
        return config.layer_config(Qwen2Config)
    return config.layer_config(LlamaConfig, mlp_bias=config.mlp_bias)
