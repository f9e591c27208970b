"""The parallel draft head: a few Qwen3 layers that read the target's features and draft a whole block in one pass.

JetSpec's head (arXiv:2606.18394, ``jetspec/models/draft_head.py``) and DFlash's (``dflash/model.py``) have the same
parameters; in JetSpec's head a row of the block attends to the rows before it, in DFlash's to all rows of the block.
They use the target's embedding and LM head; files of DeepSpec and speculators have their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm

from specbench.decoding import Target
from specbench.engine import PLAIN, Attend, ExactRotary, HeadRows, Pieces, Store
from specbench.heads.block_config import BlockHeadConfig
from specbench.heads.draft_head import Head
from specbench.heads.head_rounds import HeadRounds


class BlockHead(Head):
    """The head; its parameters have the published names.

    Shapes: B sequences, R rows of a block, n context tokens, H the hidden size, T tapped layers.

    ``embeds``, ``scores``: the head has its own embedding, its own LM head; otherwise it uses the target's.
    """

    CONFIG = BlockHeadConfig
    IGNORED = ("t2d", "verifier_norm.weight", "verifier_lm_head.weight")  # needed by training only

    def __init__(self, config: BlockHeadConfig, *, embeds: bool = False, scores: bool = False) -> None:
        super().__init__(config)
        qwen3 = _qwen3(config)
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(len(config.taps) * hidden, hidden, bias=False)
        self.hidden_norm = Qwen3RMSNorm(hidden, eps=eps)
        self.layers = nn.ModuleList(Qwen3DecoderLayer(qwen3, index) for index in range(config.num_hidden_layers))
        self.norm = Qwen3RMSNorm(hidden, eps=eps)
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden) if embeds else None
        drafted = config.draft_vocab_size or config.vocab_size
        self.lm_head = nn.Linear(hidden, drafted, bias=False) if scores else None
        self.finish()

    @staticmethod
    def rotary(config: BlockHeadConfig) -> nn.Module:
        return ExactRotary(_qwen3(config))

    @classmethod
    def from_file(cls, name: str, config: Any, tensors: dict[str, Tensor]) -> dict[str, Any]:
        return {"embeds": "embed_tokens.weight" in tensors, "scores": "lm_head.weight" in tensors}

    def scorer(self, lm_head: Any) -> Any:
        return super().scorer(lm_head) if self.lm_head is None else self.lm_head

    def share_with(self, target: Any) -> None:
        """Use the embedding and LM head of a target instead of identical copies in the head's file."""
        parts = {"embed_tokens": target.get_input_embeddings(), "lm_head": target.get_output_embeddings()}
        for name, theirs in parts.items():
            own = getattr(self, name)
            if own is not None and self.config.whole and torch.equal(own.weight, theirs.weight):
                setattr(self, name, None)

    @torch.no_grad()
    def copy_from(self, target: Any) -> None:
        """Take copies of a target's embedding and LM head, so that the head's file has its own."""
        embedding, scorer = target.get_input_embeddings().weight, super().scorer(target.get_output_embeddings()).weight
        self.embed_tokens = nn.Embedding.from_pretrained(embedding.to(self.device, self.dtype, copy=True))
        self.lm_head = nn.Linear(scorer.shape[1], scorer.shape[0], bias=False)
        self.lm_head.weight = nn.Parameter(scorer.to(self.device, self.dtype, copy=True))

    def fuse(self, features: Tensor, pieces: Pieces = PLAIN) -> Tensor:
        """One vector per context token, shared by all layers: [B, n, T × H] from the tapped layers to [B, n, H]."""
        return pieces.norm(self.hidden_norm, self.fc(features))[0]

    def keep_context(self, fused: Tensor, positions: Tensor, store: Store, pieces: Pieces = PLAIN) -> None:
        """Pass the rotated keys and the values of context tokens, [B, KV heads, n, D] each, to ``store``.

        They are computed directly from the fused vector: context does not go through layers or input norms (JetSpec).

        ``fused``: [B, n, H] from :meth:`fuse`; ``positions``: [B, n] of the tokens in their text.
        """
        rotary = self.rotary_emb(fused, positions)
        for index, layer in enumerate(self.layers):
            pieces.keep(index, layer.self_attn, fused, rotary, store)

    def project_context(self, fused: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values for :meth:`keep_context`, layer by layer."""
        found: list[tuple[Tensor, Tensor]] = []
        self.keep_context(fused, positions, lambda layer, key, value: found.append((key, value)))
        return found

    def forward(self, rows: Tensor, positions: Tensor, attend: Attend, pieces: Pieces = PLAIN) -> Tensor:
        """Run the block through all layers.

        ``rows`` [B, R, H]: embeddings of [anchor, MASK, …]; ``positions`` [B, R]: the anchor's is the number of context
        tokens. Returns [B, R, H], normalised: with the LM head, row k scores the k-th token after the anchor, or the
        one after it if the head samples from the anchor.
        """
        rotary = self.rotary_emb(rows, positions)
        branch: Tensor | None = None  # pending residual of the rows
        for index, module in enumerate(self.layers):
            layer: Any = module
            inner, rows = pieces.norm(layer.input_layernorm, rows, branch)
            branch = pieces.attention(index, layer.self_attn, inner, rotary, attend)
            inner, rows = pieces.norm(layer.post_attention_layernorm, rows, branch)
            branch = pieces.mlp(layer.mlp, inner)
        return pieces.norm(self.norm, rows, branch)[0]


def _qwen3(config: BlockHeadConfig) -> Qwen3Config:
    kinds = list(config.layer_types) or ["full_attention"] * config.num_hidden_layers
    return config.layer_config(
        Qwen3Config,
        use_sliding_window=config.sliding_window is not None,
        sliding_window=config.sliding_window,
        layer_types=kinds,
    )


class BlockRounds(HeadRounds):
    """The head's pass over blocks: read new features, return the best tokens of every position.

    Inside the pass, a round's features are appended to the head's own KV cache; the block's rows after them are scratch
    space that the next round overwrites. JetSpec's graphed drafter projects its whole context again in every round, and
    its incremental one cannot be captured; with lengths on the device, this pass is both incremental and captured.

    Shapes: S slots, F feature rows and R block rows per slot, D = ``depth`` drafted positions (at most those that the
    block drafts), K = ``width`` candidates per position. ``draws``: most draft tokens that are sampled.
    """

    def __init__(
        self,
        head: BlockHead,
        target: Target,
        *,
        depth: int,
        width: int,
        draws: int = 0,
        weights: Mapping[str, str] | None = None,
    ) -> None:
        config, theirs = head.config, target.model.get_output_embeddings()
        head.share_with(target.model)
        self._depth, self._ids = depth, head.draft_ids
        self._embed: Any = head.embed_tokens or target.model.get_input_embeddings()
        self._scorer = head.scorer(theirs)
        self._width = min(width, self._scorer.weight.shape[0])
        first = 0 if config.sample_from_anchor else 1
        self._drafted = slice(first, first + depth)  # the block's rows that score drafted positions
        # A head that looks ahead was trained on whole blocks; in a causal head, rows after the last drafted position
        # have no effect.
        rows = first + depth if config.causal else config.block_size
        self._masks = torch.full((target.slots, rows - 1), config.mask_token_id, dtype=torch.int64, device=head.device)
        own = self._scorer in (theirs, head.lm_head)
        scorer = None if own else self._scorer
        super().__init__(head, target, path=depth, rows=rows, draws=draws, scorer=scorer, weights=weights)

    def read(self, rows: HeadRows) -> None:
        """Store keys and values of new features; no layer runs for them."""
        assert rows.features is not None
        fused = self.head.fuse(rows.features, rows.pieces)
        self.head.keep_context(fused, rows.positions, rows.store, rows.pieces)

    def draft(self, rows: HeadRows, found: None) -> Sequence[Tensor]:
        """The best tokens [S, D, K] after each text, and their log-probabilities."""
        logp, best = rows.best(self._scorer(self._outputs(rows)[:, self._drafted]), self._width)
        return best if self._ids is None else self._ids[best], logp

    def _outputs(self, rows: HeadRows) -> Tensor:
        """Run the block; return the outputs [S, R, H] of its rows."""
        tokens = torch.cat([rows.anchor[:, None].long(), self._masks[: len(rows.anchor)]], dim=1)
        block = rows.block(tokens, look_ahead=not self.head.config.causal)

        def attend(index: int, module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            attention: Any = module
            scale, window = attention.scaling, attention.sliding_window
            return block.attend(index, query, key, value, scale=scale, window=window)

        outputs: Tensor = self.head(self._embed(tokens).to(self.head.dtype), block.positions, attend, block.pieces)
        return outputs
