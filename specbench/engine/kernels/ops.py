"""The device work of a step by Triton kernels; equal to :class:`specbench.engine.ops.TorchOps` in every call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specbench.engine.kernels.accept import accept_paths
from specbench.engine.kernels.bits import MOST_ROWS, reach_of, tree_bits, tree_bits_by_torch, widest_slot
from specbench.engine.kernels.kv import commit_rows, write_kv
from specbench.engine.kernels.sample import choose
from specbench.engine.kernels.take import take
from specbench.engine.layout import Layout
from specbench.engine.ops import Ancestry, Outcomes, TorchOps
from specbench.engine.sampler import Sampling, scores


class TritonOps:
    """A handful of launches a step, beside the one per layer that stores its keys and values.

    Args:
        device: where steps run; seed and temperature are kept there, so that one graph serves all of them.
    """

    def __init__(self, device: torch.device) -> None:
        self._seed = torch.zeros(1, dtype=torch.int64, device=device)
        self._temperature = torch.ones(1, dtype=torch.float32, device=device)

    def ancestry(self, parents: Tensor, layout: Layout) -> Ancestry:
        by_kernel = widest_slot(layout) <= MOST_ROWS
        bits, depth = tree_bits(parents, layout) if by_kernel else tree_bits_by_torch(parents, layout)
        return Ancestry(depth, bits)

    def write(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, layout: Layout, lengths: Tensor) -> None:
        write_kv(key, value, keys, values, layout, lengths)

    def choose(self, logits: Tensor, positions: Tensor, sampling: Sampling) -> Tensor:
        if sampling.top_k or sampling.top_p < 1:
            # Filters need order statistics of the whole row, which is torch's business.
            return scores(logits, positions, sampling).argmax(-1).to(torch.int32)
        return choose(logits, positions, seed=self._seed, temperature=self._temperature, greedy=sampling.greedy)

    def accept(
        self, tokens: Tensor, parents: Tensor, accept: Tensor, ancestry: Ancestry, next_token: Tensor, layout: Layout
    ) -> tuple[Tensor, Tensor, Tensor]:
        bits, depth, following = ancestry.rows, ancestry.depth, next_token.to(torch.int32)
        if widest_slot(layout) <= MOST_ROWS:
            return accept_paths(tokens, parents, accept, bits, depth, following, layout)
        dense = Ancestry(depth, reach_of(bits, layout))
        count, path, bonus = TorchOps().accept(tokens, parents, accept, dense, following, layout)
        return count.int(), path.int(), bonus

    def commit(self, buffers: Sequence[Tensor], layout: Layout, lengths: Tensor, count: Tensor, path: Tensor) -> None:
        commit_rows(buffers, layout, lengths, count, path)

    def take(
        self,
        outcome: Outcomes,
        firsts: Tensor,
        hidden: Tensor,
        follows: Tensor,
        new: Tensor,
        anchor: Tensor,
        tokens: Tensor,
        features: Tensor,
    ) -> None:
        take(outcome, firsts, hidden, follows, new, anchor, tokens, features)

    def same_graph(self, sampling: Sampling) -> Sampling:
        if sampling.greedy:
            return Sampling()
        filtered = sampling.top_k or sampling.top_p < 1
        return sampling if filtered else replace(sampling, temperature=1.0, seed=0)

    def set_sampling(self, sampling: Sampling) -> None:
        if not sampling.greedy:
            self._seed.fill_(sampling.seed)
            self._temperature.fill_(sampling.temperature)
