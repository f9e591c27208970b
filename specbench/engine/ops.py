"""Step operations: what a step does on the device beside the model's own layers; the oracle in plain torch.

Ancestor masks and the acceptance rule are vectorised over the rows of all sequences (DESIGN §2). Shapes: N rows, S
slots, as the step's :class:`~specbench.engine.layout.Layout` has them. Padding rows name themselves as parent and may
never be accepted: they see only themselves, belong to no slot and are stored nowhere that anyone reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.engine.layout import Layout
from specbench.engine.sampler import Sampling, filtered, perturbed, scores


@dataclass(frozen=True)
class Ancestry:
    """How the rows of a step hang together.

    Attributes:
        depth: integer [N], ancestors of each row; 0 for roots and padding.
        rows: who may see whom, in the form of the ops that made it: bool [N, N] (element (i, j): row j is row i or one
            of its ancestors), or int32 [N, W] words of 32 bits, bit j of which stands for the j-th row of row i's slot.
    """

    depth: Tensor
    rows: Tensor


#: Of a step on the device: next token [N] after each row, path [N], count [S] and bonus [S] as ``accept`` has them.
Outcomes = tuple[Tensor, Tensor, Tensor, Tensor]


class TorchOps:
    """The device work of a step by torch: the oracle, which every other implementation has to equal.

    No call reads device data on the host, so that all of it can be captured.
    """

    def ancestry(self, parents: Tensor, layout: Layout) -> Ancestry:
        """Depths and ancestors of ``parents`` [N]; roots and padding rows name themselves."""
        reach = ancestors(parents.long())
        return Ancestry(reach.sum(-1) - 1, reach)

    def write(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, layout: Layout, lengths: Tensor) -> None:
        """Stores a layer's new rows [1, heads, N, size] into the cells [S, heads, L, size] after ``lengths`` [S]."""
        cells = layout.cells(lengths, keys.shape[2])
        for cache, new in ((keys, key), (values, value)):
            cache[layout.owner, :, cells] = new[0].transpose(0, 1)

    def choose(self, logits: Tensor, positions: Tensor, sampling: Sampling) -> Tensor:
        """The next token [1, N] after rows with ``logits`` [1, N, V]; ``positions`` [1, N] are those it will have."""
        return scores(logits, positions, sampling).argmax(-1)

    def filtered(self, logits: Tensor, sampling: Sampling) -> Tensor:
        """Logits [1, N, V] over the temperature, float32, -inf for tokens left out; greedy the logits themselves."""
        return filtered(logits, sampling)

    def draw(self, kept: Tensor, positions: Tensor, sampling: Sampling) -> Tensor:
        """What :meth:`choose` chooses, of what :meth:`filtered` made, which may be written to."""
        return perturbed(kept, positions, sampling).argmax(-1)

    def accept(
        self, tokens: Tensor, parents: Tensor, accept: Tensor, ancestry: Ancestry, next_token: Tensor, layout: Layout
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The longest path of each slot that the target itself would have produced (:func:`accept_path`).

        Returns (count [S], path [N], bonus [S]): accepted rows with the root, 0 where a slot has no rows; at the place
        of depth d of a slot's rows the row of the path there, counted from the slot's first (d itself from ``count``
        on); the target's own token after the last of them.
        """
        reach, rank = ancestry.rows, layout.rank
        taken, bonus = accept_path(tokens, parents.long(), accept.bool(), reach, next_token, layout)
        count = bonus.new_zeros(len(bonus), dtype=torch.int64).index_add_(0, layout.owner, taken.long())
        # One after the last is where rows go that are not on a path.
        place = torch.where(taken, layout.of_rows(layout.first) + ancestry.depth, len(tokens))
        path = torch.cat([rank, rank[:1]]).index_copy_(0, place, rank)[:-1]
        return count, path, bonus

    def commit(self, buffers: Sequence[Tensor], layout: Layout, lengths: Tensor, count: Tensor, path: Tensor) -> None:
        """Moves the cells of accepted rows to the front of the scratch cells of their slot.

        ``buffers``: [layers, S, heads, L, size] each; ``count`` [S] and ``path`` [N] as above.
        """
        for buffer in buffers:
            target = layout.cells(lengths, buffer.shape[3])
            source = torch.where(layout.real, target - layout.rank + path, target)
            buffer[:, layout.owner, :, target] = buffer[:, layout.owner, :, source]

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
        """Writes what a draft head reads of a step's outcome, for the slots that follow it.

        S slots, N rows, P places: new rows of a text at most.

        Args:
            firsts: int32 [S], row of each slot's root.
            hidden: [N, size], of the row at each depth of each slot's path.
            follows: int32 [S], 0 or 1; what is below of other slots stays as it is.
            new, anchor: int32 [S], written: rows of the path, and the token after its end.
            tokens: int32 [P, S], written: the token after each row of the path, then 0.
            features: [S, P, size], written as far as the path goes: ``hidden`` along it.
        """
        next_token, path, count, bonus = outcome
        following, place = follows.bool(), torch.arange(len(tokens), device=path.device)
        row = (firsts[:, None] + place).clamp(max=len(path) - 1).long()
        real = (place < count[:, None]) & following[:, None]
        tokens_after = next_token[(firsts[:, None] + path[row]).clamp(max=len(path) - 1).long()]
        new.copy_(torch.where(following, count, new))
        anchor.copy_(torch.where(following, bonus, anchor))
        tokens.copy_(torch.where(following[:, None], torch.where(real, tokens_after, 0), tokens.T).T)
        features.copy_(torch.where(real[:, :, None], hidden[row].to(features.dtype), features))

    def best(self, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The K best tokens of each row of a draft head's ``scores`` [..., V]; equal scores may come in any order.

        Returns (log-probabilities float32 [..., K] over all V, tokens int64 [..., K]).
        """
        top, found = scores.topk(count, dim=-1)
        wide = torch.promote_types(scores.dtype, torch.float32)
        return (top.to(wide) - scores.to(wide).logsumexp(-1, keepdim=True)).float(), found

    def same_graph(self, sampling: Sampling) -> Sampling:
        """What of a sampling is baked into a graph that is captured with it: here all of it."""
        return sampling

    def set_sampling(self, sampling: Sampling) -> None:
        """Tells what the next steps sample with, where that is not baked in."""


#: What every implementation is.
Ops = TorchOps


def ancestors(parents: Tensor) -> Tensor:
    """Which rows each row may attend to inside its tree: itself and its ancestors.

    Pointer jumping: after round k a row knows its ancestors nearer than 2^k, so log2(N) rounds serve any trees,
    without a loop over rows.

    ``parents``: int64 [N]; roots and padding rows name themselves. Returns bool [N, N]; element (i, j): row j is row i
    or one of its ancestors.
    """
    rows = len(parents)
    reach = torch.eye(rows, dtype=torch.bool, device=parents.device)
    hop = parents
    for _ in range((rows - 1).bit_length()):
        reach = reach | reach[hop]
        hop = hop[hop]
    return reach


def accept_path(
    tokens: Tensor, parents: Tensor, accept: Tensor, reach: Tensor, next_token: Tensor, layout: Layout
) -> tuple[Tensor, Tensor]:
    """The longest path of each slot that the target itself would have produced.

    A row matches when its token is the target's next token after its parent; it is reached when it and all its
    ancestors match and may be accepted. The deepest reached row wins, the lowest row among equals (their paths hold
    the same tokens).

    Args:
        tokens: [N] token of each row.
        parents: int64 [N] parent row; roots and padding name themselves.
        accept: bool [N]; False for draft-only and padding rows.
        reach: bool [N, N] from :func:`ancestors`.
        next_token: [N] the target's token after each row.

    Returns:
        (path, bonus): ``path`` bool [N] marks the committed rows, roots included; ``bonus`` [S] is the target's own
        token after the last of each slot's, of no meaning where a slot has no rows.
    """
    rows = len(tokens)
    every = torch.arange(rows, device=tokens.device)
    root = layout.real & (layout.rank == 0)
    matches = (tokens == next_token[parents]) & accept | root
    reached = ~(reach & ~matches).any(-1) & layout.real
    # One number orders by depth, then by lowest row, so that the largest is one row's alone.
    order = torch.where(reached, reach.sum(-1) * (rows + 1) + (rows - every), 0)
    best = torch.zeros(len(layout.first), dtype=torch.int64, device=tokens.device)
    best = best.scatter_reduce(0, layout.owner, order, "amax") % (rows + 1)
    last = (rows - best).clamp(max=rows - 1)
    return reach[layout.of_rows(last), every] & layout.real, next_token[last]
