"""The head's pass over a block: new features in, the best tokens of every position out.

A round's features are appended to the head's own KV cache inside the pass, with the block's rows behind them as scratch
that the next round overwrites. JetSpec's graphed drafter projects its whole context again in every round and its
incremental one cannot be captured; lengths on the device give both at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specbench.decoding import Marginals, Target
from specbench.engine import HeadPass, HeadRows
from specbench.methods.jetspec.head import DraftHead


class BlockPass:
    """The head's forward over the blocks of all sequences that wait for one, together.

    S slots, F feature rows and R block rows of each, D = ``depth`` drafted positions, fewer than the block has, and
    K = ``width`` candidates of each. The head borrows the target's embedding and LM head.
    """

    def __init__(self, head: DraftHead, target: Target, *, depth: int, width: int) -> None:
        config = head.config
        self._head, self._depth = head, depth
        self._embed = target.model.get_input_embeddings()
        self._scorer = head.scorer(target.model.get_output_embeddings())
        self._ids = head.draft_ids
        self._width = min(width, self._scorer.weight.shape[0])
        # The rows that look ahead were trained on whole blocks; without them, those behind the last wanted one are
        # nobody's business.
        rows = depth + 1 if config.causal else config.block_size
        self._masks = torch.full((target.slots, rows - 1), config.mask_token_id, dtype=torch.int64, device=head.device)
        shape = config.num_key_value_heads, config.head_dim, config.head_dim
        self._passes = HeadPass(
            target,
            self._read,
            self._draft,
            shapes=dict.fromkeys(range(config.num_hidden_layers), shape),
            new_rows=depth + 1,  # the longest path of a tree of that depth, root included
            draft_rows=rows,
            features=head.fc.in_features,
            modules=[head] if self._ids is None else [head, self._scorer],
            layers=[*head.layers],
        )
        self.open, self.close, self.length = self._passes.open, self._passes.close, self._passes.length
        self.hold = self._passes.hold
        self._anchors: dict[int, int] = {}
        self.nbytes = self._passes.nbytes + sum(weight.nbytes for weight in head.parameters())

    def no_features(self, count: int) -> Tensor:
        """Features [count, T × H] that say nothing, for timing."""
        return self._head.fc.weight.new_zeros(count, self._head.fc.in_features)

    def append(self, slot: int, features: Tensor, anchor: int) -> None:
        """Takes what the last forward of the target brought.

        ``features``: [n, T × H] tapped layers of the tokens that it put in the cache; ``anchor``: the last emitted
        token, which has no features yet and is the only one that the head reads.
        """
        self._passes.append(slot, [anchor] * len(features), features)
        self._anchors[slot] = anchor

    def marginals(self, slot: int) -> Marginals:
        """What the head says comes behind a slot's anchor; runs the pass if that has not been done.

        Returns D depths of K candidates, log-probabilities over all that the head can draft, at temperature 1.
        """
        tokens, logp = self._passes.draft(slot)
        return Marginals(self._anchors[slot], tokens.tolist(), logp.tolist())

    # ------------------------------------------------------------------ the pass

    def _read(self, rows: HeadRows) -> None:
        """Keys and values of new features; no layer computes anything for them."""
        assert rows.features is not None
        fused = self._head.fuse(rows.features, rows.pieces)
        self._head.keep_context(fused, rows.positions, rows.store, rows.pieces)

    def _draft(self, rows: HeadRows, _: None) -> Sequence[Tensor]:
        """The best tokens [S, D, K] behind each text, and their log-probabilities."""
        tokens = torch.cat([rows.anchor[:, None].long(), self._masks[: len(rows.anchor)]], dim=1)
        block = rows.block(tokens, look_ahead=not self._head.config.causal)

        def attend(index: int, module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            attention: Any = module
            scale, window = attention.scaling, attention.sliding_window
            return block.attend(index, query, key, value, scale=scale, window=window)

        hidden = self._head(self._embed(tokens).to(self._head.dtype), block.positions, attend, block.pieces)
        logp, found = block.best(self._scorer(hidden[:, 1 : self._depth + 1]), self._width)
        return found if self._ids is None else self._ids[found], logp
