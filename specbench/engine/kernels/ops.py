"""Device work of a step with Triton kernels; equal to :class:`specbench.engine.ops.TorchOps` in every call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.engine.kernels.accept import accept_paths
from specbench.engine.kernels.best import best, takes
from specbench.engine.kernels.bits import MOST_ROWS, reach_of, span_bits, tree_bits, tree_bits_by_torch, widest_slot
from specbench.engine.kernels.filters import keep, limits_of
from specbench.engine.kernels.kv import commit_rows, write_kv
from specbench.engine.kernels.sample import Limits, choose
from specbench.engine.kernels.take import take
from specbench.engine.layout import Layout
from specbench.engine.ops import Ancestry, Outcomes, TorchOps, shared_cells
from specbench.engine.sampler import Sampling, filtered


class TritonOps(TorchOps):
    """A few launches per step, and one more per layer that stores its keys and values.

    Args:
        device: device that steps run on; it holds seed, temperature, k and p, so that one graph serves all values.
    """

    def __init__(self, device: torch.device) -> None:
        self._seed = torch.zeros(1, dtype=torch.int64, device=device)
        self._temperature = torch.ones(1, dtype=torch.float32, device=device)
        self._one = torch.ones(1, dtype=torch.float32, device=device)
        self._top_k = torch.ones(1, dtype=torch.int64, device=device)
        self._top_p = torch.ones(1, dtype=torch.float64, device=device)

    def ancestry(self, parents: Tensor, layout: Layout) -> Ancestry:
        by_kernel = widest_slot(layout) <= MOST_ROWS
        bits, depth = tree_bits(parents, layout) if by_kernel else tree_bits_by_torch(parents, layout)
        return Ancestry(depth, bits)

    def spans(self, sees: Tensor, layout: Layout) -> tuple[Tensor, Ancestry]:
        text = shared_cells(sees, layout)
        return text, Ancestry(torch.zeros_like(sees), span_bits(sees - layout.of_rows(text), layout))

    def write(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, layout: Layout, lengths: Tensor) -> None:
        write_kv(key, value, keys, values, layout, lengths)

    def choose(self, logits: Tensor, positions: Tensor, sampling: Sampling) -> Tensor:
        limits = self._limits(logits, sampling) if _cut(sampling) else None
        return choose(
            logits,
            positions,
            seed=self._seed,
            temperature=self._temperature,
            greedy=sampling.greedy,
            limits=limits,
        )

    def filtered(self, logits: Tensor, sampling: Sampling) -> Tensor:
        if not _cut(sampling):
            return filtered(logits, sampling)
        return keep(logits, self._limits(logits, sampling), temperature=self._temperature)

    def draw(self, kept: Tensor, positions: Tensor, sampling: Sampling) -> Tensor:
        return choose(kept, positions, seed=self._seed, temperature=self._one, greedy=sampling.greedy)

    def _limits(self, logits: Tensor, sampling: Sampling) -> Limits:
        return limits_of(
            logits,
            temperature=self._temperature,
            top_k=self._top_k if sampling.top_k else None,
            top_p=self._top_p if sampling.top_p < 1 else None,
        )

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

    def best(self, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
        # Calls in one head's round depend on each other, so they never overlap and can be one site.
        return best(scores, count, self._seed.data_ptr()) if takes(scores, count) else TorchOps().best(scores, count)

    def same_graph(self, sampling: Sampling) -> Sampling:
        """Only whether sampling, top-k and top-p are on is baked in, not their values."""
        if sampling.greedy:
            return Sampling()
        return Sampling(temperature=1.0, top_k=min(sampling.top_k, 1), top_p=1.0 if sampling.top_p == 1 else 0.5)

    def set_sampling(self, sampling: Sampling) -> None:
        if not sampling.greedy:
            self._seed.fill_(sampling.seed)
            self._temperature.fill_(sampling.temperature)
            self._top_k.fill_(sampling.top_k)
            self._top_p.fill_(sampling.top_p)


def _cut(sampling: Sampling) -> bool:
    """Whether top-k or top-p removes tokens."""
    return sampling.filters and not sampling.greedy
