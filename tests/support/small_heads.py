"""Heads of every kind for a small target, and what their rounds return in our own code and in torch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from support.decoders import alone
from support.models import supported

from specbench.engine.heads.head_pass import HeadPass
from specbench.heads.block_config import BlockHeadConfig
from specbench.heads.block_head import BlockHead, BlockRounds
from specbench.heads.level_rounds import LevelRounds
from specbench.methods.eagle3.config import HeadConfig as EagleConfig
from specbench.methods.eagle3.head import DraftHead as EagleHead

ROUNDS = (((0, 9),), ((1, 1),), ((0, 2),))  # (slot, new rows) of the texts that share a round
BLOCKS = ("block", "ahead", "windows")
KINDS = (*BLOCKS, "tree", "chain", "norms", "parallel")


@cache
def target(device: str = "", dtype: torch.dtype = torch.float32) -> Any:
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return copy.deepcopy(supported("qwen3")).to(device, dtype)


def head(kind: str, device: str = "") -> Any:
    """A head of few layers whose numbers are large enough that everything in it matters."""
    config, device = target(device).config, target(device).device
    made: Any
    if kind in BLOCKS:
        shape = BlockHeadConfig.for_target(
            config, mask_token_id=299, block_size=4, layers=2 if kind == "ahead" else 1, causal=kind != "ahead"
        )
        if kind == "windows":
            shape = replace(shape, sliding_window=5, layer_types=("sliding_attention",))
        made = BlockHead.random(shape, device=device)
    else:
        eagle = EagleConfig.for_target(
            config, layers=2 if kind == "tree" else 1, mask_token_id=7 if kind == "parallel" else None
        )
        if kind == "norms":
            eagle = replace(eagle, norm_before_residual=True, feeds_norm=True, head_norms=True)
        made = EagleHead.random(eagle, device=device)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(device)
            parameter.copy_(1 + 0.3 * noise if parameter.dim() == 1 else 0.3 * noise)
    return made


def rounds(slots: int, capacity: int, device: str = "cpu", **how: Any) -> LevelRounds:
    """Rounds of the head that drafts trees level by level, without an engine; three levels of two candidates."""
    what = alone(target(device), slots=slots, capacity=capacity, **how)
    return LevelRounds(head("tree", device), what, depth=3, width=2)


NOTED: list[Any] = []


def passes(kind: str, drafts: Any, native: bool | None, products: Any = lambda weights: None) -> Any:
    model = target(drafts.device.type, drafts.dtype)
    what = replace(alone(model, slots=3, capacity=60), native=native, note=NOTED.append, products=products)
    if isinstance(drafts, BlockHead):
        return BlockRounds(drafts, what, depth=3, width=5)
    return LevelRounds(drafts, what, depth=3, width=1 if kind == "chain" else 2)


def outcomes(
    kind: str, drafts: Any, native: bool | None, products: Any = lambda weights: None
) -> tuple[list[tuple[torch.Tensor, ...]], dict[str, Any]]:
    """What rounds hand to the host, and the report."""
    found = passes(kind, drafts, native, products)._passes
    return played(found, drafts, ROUNDS), found.report()


def played(found: HeadPass, drafts: Any, rounds: Sequence[Sequence[tuple[int, int]]]) -> list[tuple[torch.Tensor, ...]]:
    """What each text drafts when texts get new rows round by round."""
    generator, results = torch.Generator().manual_seed(1), []
    for _ in range(3):
        found.open()
    for some in rounds:
        for slot, count in some:
            features = torch.randn(count, drafts.features, generator=generator).to(drafts.device, drafts.dtype)
            found.append(slot, [(5 * each) % 97 for each in range(count)], features)
        results += [found.draft(slot) for slot, _ in some]
    return results
