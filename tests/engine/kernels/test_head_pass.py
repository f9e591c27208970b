"""Dependent tree passes of a head on the Triton kernels say what they say on the oracle."""

from __future__ import annotations

import torch
from support import small_heads


def test_tree_passes_on_the_kernels_are_those_on_the_oracle(device: str) -> None:
    found = []
    for attention in ("reference", "triton"):
        drafts = small_heads.rounds(slots=3, capacity=60, device=device, attention=attention)
        given = ((0, 9),), ((2, 1),), ((0, 2),), ((2, 4),)  # a prompt, a hole, and rounds of unlike lengths
        found.append(small_heads.played(drafts._passes, drafts.head, given))
    for reference, kernels in zip(*found, strict=True):
        for one, other in zip(reference, kernels, strict=True):
            if one.is_floating_point():
                assert (one - other).abs().max() < 1e-4
            else:
                assert torch.equal(one, other)
