"""Training blocks of a text: where they start, and which of their rows have a label.

An anchor is a token of the answer whose next token is in the answer too (SpecForge, ``dflash_family_model.py``). Its
block is [anchor, MASK, …] at the anchor's position and the following ones, and it predicts the D tokens after the
anchor, from the text up to and including the anchor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Blocks:
    """A blocks of R rows for each of B texts.

    Attributes:
        anchors: int64 [B, A] position of each block's anchor; 0 for an unused block.
        used: bool [B, A] whether the block is used.
        positions: int64 [B, A × R] positions of all rows.
        learns: bool [B, A, D] whether the token 1 to D positions after the anchor is in the text.
    """

    anchors: Tensor
    used: Tensor
    positions: Tensor
    learns: Tensor


def blocks_at(anchors: Tensor, used: Tensor, ends: Tensor, rows: int, drafts: int) -> Blocks:
    """Blocks at given anchors of texts with ``ends`` int64 [B] tokens; ``rows``: R; ``drafts``: D."""
    anchors = anchors.masked_fill(~used, 0)
    offsets = torch.arange(max(rows, drafts + 1), device=anchors.device)
    places = anchors[:, :, None] + offsets
    positions = places[:, :, :rows]
    learns = used[:, :, None] & (places[:, :, 1 : 1 + drafts] < ends[:, None, None])
    return Blocks(anchors, used, positions.flatten(1), learns)


def sample_blocks(starts: Tensor, ends: Tensor, count: int, rows: int, drafts: int) -> Blocks:
    """Blocks at anchors sampled uniformly without replacement from each answer, with torch's generator.

    ``starts``, ``ends``: int64 [B] first position of each answer, and tokens of each text; ``count``: at most A; texts
    with fewer anchors use all of them.
    """
    candidates = int((ends - 1 - starts).max().clamp(min=1))
    lots = torch.rand(len(starts), candidates)  # from the CPU's generator, which a checkpoint restores
    places = torch.arange(candidates)
    there = places < (ends - 1 - starts).cpu()[:, None]
    chosen = lots.masked_fill(~there, 2.0).argsort(dim=1)[:, :count]
    used = there.gather(1, chosen).to(starts.device)
    return blocks_at(starts[:, None] + chosen.to(starts.device), used, ends, rows, drafts)


def every_block(start: int, end: int, rows: int, drafts: int, device: torch.device) -> Blocks:
    """A block at every anchor of one text, in order."""
    anchors = torch.arange(start, max(start, end - 1), device=device)[None]
    used = torch.ones_like(anchors, dtype=torch.bool)
    return blocks_at(anchors, used, torch.tensor([end], device=device), rows, drafts)
