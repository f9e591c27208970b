"""Draft with MTP layers: the first one repeated, or one layer for each draft token of a chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.decoding import Target
from specbench.engine import HeadRows
from specbench.heads import LevelRounds
from specbench.methods.mtp.head import MtpHead, MtpLayer


class MtpRounds(LevelRounds):
    """Rounds of one layer, which is repeated for each level and stores the keys and values of all levels."""

    def _layers(self, rows: HeadRows, before: Tensor) -> Tensor:
        return _run(self.head.first, self._embed, rows, rows.tokens, before)


class LayeredRounds(MtpRounds):
    """Rounds in which layer k drafts the k-th token of a chain, as the layers were trained (DeepSeek-V3, §2.2).

    Layer k > 0 reads, for each token of the text, the output of the layer before it and the embedding of the token
    k + 1 places later. For the last k tokens that is a draft token. So a round computes the last rows of the round
    before anew, when their tokens are known; it keeps what the first layer returned for them.
    """

    def __init__(self, head: MtpHead, target: Target, *, depth: int, **how: Any) -> None:
        config, device = head.config, head.device
        model = target.model
        self._tables: list[tuple[Any, Any]] = [
            (layer.embed_tokens or model.get_input_embeddings(), layer.lm_head or model.get_output_embeddings())
            for layer in head.depths
        ]
        self._back = depth - 1
        self._kept = torch.zeros(target.slots, self._back, config.hidden_size, dtype=head.dtype, device=device)
        self._kept_tokens = torch.zeros(target.slots, self._back, dtype=torch.int64, device=device)
        super().__init__(head, target, depth=depth, **how)

    def read(self, rows: HeadRows) -> Any:
        """Run all layers over new rows of the text: tokens and log-probabilities [S, D, 1] of the chain after it."""
        outputs: Tensor = super().read(rows)
        layers: Sequence[Any] = self.head.depths
        drafts = [self._drafted(rows, layers[0].norm(rows.last(outputs)), 0)]
        if self._back:
            again, tokens, before = self._with_kept(rows, layers[0].fed_back(outputs))
            end = (again.count.long() - 1).clamp(min=0)[:, None]
            for level in range(1, self._depth):
                tokens = torch.cat([tokens[:, 1:], tokens[:, -1:]], dim=1).scatter(1, end, drafts[-1][0].flatten(1))
                outputs = _run(layers[level], self._tables[level][0], again, tokens, before)
                drafts.append(self._drafted(rows, layers[level].norm(again.last(outputs)), level))
                before = layers[level].fed_back(outputs)
        return [torch.cat(parts, dim=1) for parts in zip(*drafts, strict=True)]

    def draft(self, rows: HeadRows, found: Any) -> Sequence[Tensor]:
        """Return tokens and log-probabilities of the chain, flat as those of :meth:`LevelRounds.draft`."""
        tokens, logp = found
        return tokens[..., 0], logp[..., 0], tokens[:, :0, 0]

    def _with_kept(self, rows: HeadRows, fed: Tensor) -> tuple[HeadRows, Tensor, Tensor]:
        """The rows to compute, with their tokens and what the second layer reads; keep the last ones."""
        slots = rows.slots
        again, back = rows.again(self._back)
        every = torch.cat([self._kept_tokens[slots], rows.tokens.long()], dim=1)
        every_fed = torch.cat([self._kept[slots], fed], dim=1)
        # `every` begins with as many kept rows as there may be; fewer are valid at the beginning of a text.
        places = torch.arange(every.shape[1], device=every.device)
        used = ((self._back - back)[:, None] + places).clamp(max=every.shape[1] - 1)
        last = rows.count.long()[:, None] + places[: self._back]
        self._kept_tokens[slots] = every.gather(1, last)
        self._kept[slots] = every_fed.gather(1, last[..., None].expand(-1, -1, every_fed.shape[2]))
        return again, every.gather(1, used), every_fed.gather(1, used[..., None].expand_as(every_fed))

    def _drafted(self, rows: HeadRows, normed: Tensor, level: int) -> tuple[Tensor, Tensor]:
        return self._chosen(rows, self._tables[level][1](normed), level)


def _run(layer: MtpLayer, embed: Any, rows: HeadRows, tokens: Tensor, before: Tensor) -> Tensor:
    """Outputs [S, n, H] of a layer for rows."""
    given = rows.arguments()
    cache = {name: given[name] for name in ("past_key_values", "step")}
    embedded = embed(tokens.long()).to(before.dtype)
    outputs: Tensor = layer(before, embedded, given["position_ids"], **cache)
    return outputs
