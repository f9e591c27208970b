"""The draft head's pass on the Triton kernels scores what it scores on the oracle."""

from __future__ import annotations

import copy

import pytest
import torch
from support.decoders import alone
from support.models import prompt, supported

from specbench.heads.block_config import BlockHeadConfig
from specbench.heads.block_head import BlockHead, BlockRounds


# Within a tile of the kernel, and more than one.
@pytest.mark.parametrize(
    ("block", "causal"),
    [
        pytest.param(4, True, marks=pytest.mark.slow),
        (4, False),
        (40, True),
        pytest.param(40, False, marks=pytest.mark.slow),
    ],
)
def test_the_pass_on_the_kernels_is_the_pass_on_the_oracle(causal: bool, block: int, device: str) -> None:
    model = copy.deepcopy(supported("qwen3")).to(device)
    config = BlockHeadConfig.for_target(model.config, mask_token_id=299, block_size=block, layers=2, causal=causal)
    head = BlockHead.random(config, device=device)
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() > 1:
                parameter.mul_(10)  # so that attention is not flat
    found = []
    for attention in ("reference", "triton"):
        generator = torch.Generator().manual_seed(0)
        passes = BlockRounds(head, alone(model, slots=2, capacity=60, attention=attention), depth=3, width=5)
        candidates = []
        for slot, lengths in enumerate(((9, 2), (1, 4))):
            passes.open()
            for count, anchor in zip(lengths, prompt(2, 300, slot), strict=True):
                features = torch.randn(count, head.fc.in_features, generator=generator).to(device)
                passes.append(slot, [anchor] * count, features)
                candidates.append(passes.marginals(slot))
        found.append(candidates)
    for reference, kernels in zip(*found, strict=True):
        assert kernels.tokens == reference.tokens
        assert (torch.tensor(kernels.logp) - torch.tensor(reference.logp)).abs().max() < 1e-4
