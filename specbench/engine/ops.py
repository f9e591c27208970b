"""Step operations: what a step does on the device beside the model's own layers; the oracle in plain torch.

Ancestor masks and the acceptance rule are vectorised over slots and rows (DESIGN §2). Shapes: S slots, Q rows. Padding
rows carry ``parents[row] == row`` and ``accept[row] == False``: they see only themselves and can never be reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specbench.engine.sampler import Sampling, scores


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
        """The longest path that the target itself would have produced (:func:`accept_path`).

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


def ancestors(parents: Tensor) -> Tensor:
    """Which rows each row may attend to inside its tree: itself and its ancestors.

    Pointer jumping: after round k a row knows its ancestors nearer than 2^k, so log2(Q) rounds serve any tree,
    without a loop over rows.

    Args:
        parents: [S, Q] parent row; the root (and any padding row) names itself.

    Returns:
        bool [S, Q, Q]; element (s, i, j) is True when row j is row i or one of its ancestors.
    """
    slots, rows = parents.shape
    reach = torch.eye(rows, dtype=torch.bool, device=parents.device).expand(slots, rows, rows)
    hop = parents
    for _ in range((rows - 1).bit_length()):
        reach = reach | reach.gather(1, hop.unsqueeze(-1).expand(slots, rows, rows))
        hop = hop.gather(1, hop)
    return reach


def accept_path(
    tokens: Tensor, parents: Tensor, accept: Tensor, reach: Tensor, next_token: Tensor
) -> tuple[Tensor, Tensor]:
    """The longest path that the target itself would have produced.

    A row matches when its token is the target's next token after its parent; it is reached when it and all its
    ancestors match and may be accepted. The deepest reached row wins, the lowest row among equals (their paths hold
    the same tokens).

    Args:
        tokens: [S, Q] token of each row.
        parents: [S, Q] parent row; root and padding name themselves.
        accept: bool [S, Q]; False for draft-only and padding rows.
        reach: bool [S, Q, Q] from :func:`ancestors`.
        next_token: [S, Q] the target's token after each row.

    Returns:
        (path, bonus): ``path`` bool [S, Q] marks the committed rows, root included; ``bonus`` [S] is the target's own
        token after the last of them.
    """
    matches = (tokens == next_token.gather(1, parents)) & accept
    matches[:, 0] = True
    reached = ~(reach & ~matches.unsqueeze(1)).any(-1)
    depth = reach.sum(-1)
    # argmax of an integer tensor may return any of several maxima; adding the row's rank makes the lowest one unique
    rows = tokens.shape[1]
    rank = torch.arange(rows, 0, -1, device=tokens.device)
    best = torch.where(reached, depth * (rows + 1) + rank, 0).argmax(-1, keepdim=True)
    path = reach.gather(1, best.unsqueeze(-1).expand(-1, 1, rows)).squeeze(1)
    return path, next_token.gather(1, best).squeeze(1)
