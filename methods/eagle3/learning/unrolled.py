"""Training-time test: run the head over a whole text and then over its own outputs, as in drafting (EAGLE-3 §3.2).

Row t of step 0 reads the features of token t and the embedding of token t + 1. Row t of step i reads its own output of
step i - 1 and the embedding of token t + 1 + i, like the i-th draft after it. It attends to what that draft attends to
(the rows of step 0 up to row t, and its own rows of the steps between) and predicts token t + 2 + i.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from specbench.methods.eagle3.head import DraftHead

#: Rotated keys and values [B, KV heads, n, D] of a layer.
Cells = tuple[Tensor, Tensor]


def unrolled(
    head: DraftHead, fused: Tensor, embedded: Tensor, rows: Tensor, steps: int, recompute: bool = False
) -> Iterator[Tensor]:
    """Outputs of the head at each step, [B, R, H].

    Step 0 computes every row, because later rows attend to its keys and values, but each step yields only the chosen
    rows, and further steps compute only these.

    ``head`` drafts token by token without a sliding window; ``fused``: [B, S, H] of :meth:`DraftHead.fuse`;
    ``embedded``: [B, S + steps, H], padded at the end; ``rows``: int64 [B, R] the chosen rows, below S - 1;
    ``recompute``: compute activations again in the backward pass: less memory, a third more time.
    """
    length = fused.shape[1]
    positions = torch.arange(length - 1, device=fused.device).expand(len(fused), -1)
    chosen = rows[:, :, None].expand(-1, -1, fused.shape[2])
    outputs, text = _pass(head, fused[:, :-1], embedded[:, 1:length], positions, _First(), recompute)
    outputs = outputs.gather(1, chosen)
    yield outputs
    own: list[list[Cells]] = []
    for step in range(1, steps):
        tokens = embedded.gather(1, chosen + 1 + step)
        sees = _Behind(rows, text, own)
        outputs, mine = _pass(head, head.fed_back(outputs), tokens, rows + step, sees, recompute)
        own = [*own, mine]
        yield outputs


def _pass(
    head: DraftHead, before: Tensor, embedded: Tensor, positions: Tensor, sees: _First | _Behind, recompute: bool
) -> tuple[Tensor, list[Cells]]:
    """The head's outputs for rows, and the keys and values of each layer."""

    def run(before: Tensor, embedded: Tensor) -> tuple[Tensor, list[Cells]]:
        stored: list[Cells] = []

        def attend(layer: int, attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            stored.append((key, value))
            return sees(layer, query, key, value)

        return head(before, embedded, positions, attend), stored

    found: tuple[Tensor, list[Cells]]
    found = checkpoint(run, before, embedded, use_reentrant=False) if recompute else run(before, embedded)
    return found


class _First:
    """Causal attention over the text."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return mixed.transpose(1, 2)


class _Behind:
    """Attention of a later step: the text up to each row, then the row's own keys of the steps between.

    ``rows``: int64 [B, R] positions in the text; ``text``: keys and values of step 0, by layer; ``own``: keys and
    values of the later steps, each by layer.
    """

    def __init__(self, rows: Tensor, text: Sequence[Cells], own: Sequence[Sequence[Cells]]) -> None:
        self._rows, self._text, self._own = rows, text, own

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        texts, heads, count, size = query.shape
        keys, values = self._text[layer]
        own = [*(step[layer] for step in self._own), (key, value)]
        asked = query.view(texts, keys.shape[1], -1, count, size)  # [B, KV heads, group, R, D]
        far = (asked.flatten(2, 3) @ keys.transpose(-1, -2)).view(*asked.shape[:-1], -1)
        seen = torch.arange(keys.shape[2], device=query.device) <= self._rows[:, None, None, :, None]
        near = torch.stack([(asked * k[:, :, None]).sum(-1) for k, _ in own], dim=-1)
        scores = torch.cat([far.masked_fill(~seen, -torch.inf), near], dim=-1) * size**-0.5
        past, here = scores.softmax(dim=-1).split([keys.shape[2], len(own)], dim=-1)
        mixed = (past.flatten(2, 3) @ values).view(*asked.shape[:-1], -1)
        for at, (_, v) in enumerate(own):
            mixed = mixed + here[..., at, None] * v[:, :, None]
        return mixed.reshape(texts, heads, count, -1).transpose(1, 2)
