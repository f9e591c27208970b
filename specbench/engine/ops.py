"""What a step does on the device beside the model's own layers: its seam, and the oracle in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specbench.engine.sampler import Sampling, scores
from specbench.engine.verify import accept_path, ancestors


@dataclass(frozen=True)
class Ancestry:
    """How the rows of a step hang together.

    Attributes:
        depth: integer [S, Q], ancestors of each row; 0 for roots and padding.
        rows: who may see whom, in the form of the ops that made it: bool [S, Q, Q] (element (s, i, j): row j is row i
            or one of its ancestors), or the same as int32 [S, Q, ceil(Q / 32)] bits.
    """

    depth: Tensor
    rows: Tensor


class Ops(Protocol):
    """The device work of a step. No call reads device data on the host, so that all of it can be captured.

    S slots from the cache's first on, Q rows, L cells. Shapes and meanings of the arguments are those of
    :class:`TorchOps`, which every other implementation has to equal.
    """

    def ancestry(self, parents: Tensor) -> Ancestry: ...
    def write(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> None: ...
    def choose(self, logits: Tensor, positions: Tensor, sampling: Sampling) -> Tensor: ...
    def accept(
        self, tokens: Tensor, parents: Tensor, accept: Tensor, ancestry: Ancestry, next_token: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def commit(self, buffers: Sequence[Tensor], lengths: Tensor, count: Tensor, path: Tensor) -> None: ...
    def same_graph(self, sampling: Sampling) -> Sampling: ...
    def set_sampling(self, sampling: Sampling) -> None: ...


class TorchOps:
    """The oracle."""

    def ancestry(self, parents: Tensor) -> Ancestry:
        """Depths and ancestors of ``parents`` [S, Q]; the root and any padding row name themselves."""
        reach = ancestors(parents.long())
        return Ancestry(reach.sum(-1) - 1, reach)

    def write(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> None:
        """Stores a layer's new rows [S, heads, Q, size] into its cells [S, heads, L, size] from ``lengths`` [S] on."""
        cells = lengths.long()[:, None] + torch.arange(key.shape[2], device=key.device)
        for cache, new in ((keys, key), (values, value)):
            cache.scatter_(2, cells[:, None, :, None].expand(-1, new.shape[1], -1, new.shape[3]), new)

    def choose(self, logits: Tensor, positions: Tensor, sampling: Sampling) -> Tensor:
        """The next token [S, Q] after rows with ``logits`` [S, Q, V]; ``positions`` are those it will have."""
        return scores(logits, positions, sampling).argmax(-1)

    def accept(
        self, tokens: Tensor, parents: Tensor, accept: Tensor, ancestry: Ancestry, next_token: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The longest path that the target itself would have produced (:func:`~specbench.engine.verify.accept_path`).

        Returns:
            (count [S], path [S, Q], bonus [S]): accepted rows with the root, the row at each depth of the path (from
            ``count`` on: the depth itself), and the target's own token after the last of them.
        """
        taken, bonus = accept_path(tokens, parents.long(), accept.bool(), ancestry.rows, next_token)
        count = taken.sum(-1)
        rank = torch.arange(tokens.shape[1], device=tokens.device)
        # Parents come before children, so the path in the order of its rows is the path in the order of its depths.
        path = torch.where(taken, rank, tokens.shape[1]).sort(dim=-1).values
        return count, torch.where(rank < count[:, None], path, rank), bonus

    def commit(self, buffers: Sequence[Tensor], lengths: Tensor, count: Tensor, path: Tensor) -> None:
        """Moves the cells of accepted rows to the front of the scratch cells of their slot.

        Args:
            buffers: [layers, slots, heads, L, size] each; the first S slots are those of the step.
            lengths, count, path: [S], [S], [S, Q] as above.
        """
        slots, rows = path.shape
        target = lengths.long()[:, None] + torch.arange(rows, device=path.device)
        source = lengths.long()[:, None] + path
        for buffer in buffers:
            mine = buffer[:, :slots]
            shape = (mine.shape[0], slots, mine.shape[2], rows, mine.shape[4])
            moved = mine.gather(3, source[None, :, None, :, None].expand(shape))
            mine.scatter_(3, target[None, :, None, :, None].expand(shape), moved)

    def same_graph(self, sampling: Sampling) -> Sampling:
        """What of a sampling is baked into a graph that is captured with it: here all of it."""
        return sampling

    def set_sampling(self, sampling: Sampling) -> None:
        """Tells what the next steps sample with, where that is not baked in."""
