"""Dependent tree passes of a head on the Triton kernels say what they say on the oracle."""

from __future__ import annotations

import copy

import torch
from support.decoders import EagleDrafts, EagleHead, alone
from support.models import tiny_llama

LAYERS = 4


def test_tree_passes_on_the_kernels_are_those_on_the_oracle(device: str) -> None:
    model = copy.deepcopy(tiny_llama(97, num_hidden_layers=LAYERS)).to(device)
    head = EagleHead(model)
    found = []
    for attention in ("reference", "triton"):
        generator = torch.Generator().manual_seed(0)
        passes = EagleDrafts(head, alone(model, slots=3, capacity=60, attention=attention)).passes
        drafted = []
        for _ in range(3):
            passes.open()
        for slot, count in ((0, 9), (2, 1), (0, 2), (2, 4)):  # a prompt, a hole, and rounds of unlike lengths
            features = torch.randn(count, head.fc.in_features, generator=generator).to(device)
            passes.append(slot, list(range(count)), features)
            drafted.append(passes.draft(slot))
        found.append(drafted)
    for reference, kernels in zip(*found, strict=True):
        *drafts, logp = zip(reference, kernels, strict=True)
        assert all(torch.equal(one, other) for one, other in drafts)
        assert (logp[0] - logp[1]).abs().max() < 1e-4
