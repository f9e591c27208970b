"""Device operations of a step apart from the model's layers; the reference implementation in plain torch.

Ancestor masks and the acceptance rule are vectorised over the rows of all sequences. Shapes: N rows, S
slots, as in the step's :class:`~specbench.engine.layout.Layout`. Padding rows are their own parents and are never
accepted: they see only themselves, belong to no slot and are stored only in a cell that is never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.decoding import TypicalAcceptance
from specbench.engine.layout import Layout
from specbench.engine.sampler import Sampling, filtered, perturbed, scores


@dataclass(frozen=True)
class Ancestry:
    """Which rows of a step are ancestors of which.

    Attributes:
        depth: integer [N], number of ancestors of each row; 0 for roots and padding.
        rows: which rows each row may see, in the form of the ops that made it: bool [N, N] (element (i, j): row j is
            row i or one of its ancestors), or int32 [N, W] words of 32 bits, where bit j of row i stands for the j-th
            row of row i's slot.
    """

    depth: Tensor
    rows: Tensor


#: Outcome of a step on the device: next token [N] after each row, and path [N], count [S] and bonus [S] of ``accept``.
Outcomes = tuple[Tensor, Tensor, Tensor, Tensor]


class TorchOps:
    """Device work of a step in torch: the reference that every other implementation must equal.

    No call reads device data on the host, so that everything can be captured.
    """

    def ancestry(self, parents: Tensor, layout: Layout) -> Ancestry:
        """Depth and ancestors of each row from ``parents`` [N]; roots and padding rows are their own parents."""
        reach = ancestors(parents.long())
        return Ancestry(reach.sum(-1) - 1, reach)

    def spans(self, sees: Tensor, layout: Layout) -> tuple[Tensor, Ancestry]:
        """Visibility of rows that each see the first ``sees`` [N] cells of their slot.

        Returns (cells that all rows of a slot see [S], which of as many cells after these as there are rows each row
        sees, as :class:`Ancestry` without depths).
        """
        text = shared_cells(sees, layout)
        reach = (layout.rank < (sees - layout.of_rows(text))[:, None]) & (layout.slot[:, None] == layout.slot)
        return text, Ancestry(torch.zeros_like(sees), reach & layout.real[:, None])

    def write(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, layout: Layout, lengths: Tensor) -> None:
        """Store a layer's new rows [1, heads, N, size] in the cells [S, heads, L, size] after ``lengths`` [S]."""
        cells = layout.cells(lengths, keys.shape[2])
        for cache, new in ((keys, key), (values, value)):
            cache[layout.owner, :, cells] = new[0].transpose(0, 1)

    def choose(self, logits: Tensor, positions: Tensor, sampling: Sampling) -> Tensor:
        """Choose the next token [1, N] after rows with ``logits`` [1, N, V]; ``positions`` [1, N]: its positions."""
        return scores(logits, positions, sampling).argmax(-1)

    def filtered(self, logits: Tensor, sampling: Sampling) -> Tensor:
        """Logits [1, N, V] divided by the temperature, float32, -inf for filtered tokens; unchanged if greedy."""
        return filtered(logits, sampling)

    def draw(self, kept: Tensor, positions: Tensor, sampling: Sampling) -> Tensor:
        """Choose like :meth:`choose`, from the result of :meth:`filtered`, which may be overwritten."""
        return perturbed(kept, positions, sampling).argmax(-1)

    def accept(
        self, tokens: Tensor, parents: Tensor, accept: Tensor, ancestry: Ancestry, next_token: Tensor, layout: Layout
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Find the longest path of each slot that the target itself would have produced (:func:`accept_path`).

        Returns (count [S], path [N], bonus [S]). ``count``: rows of the path, root included; 0 for a slot without rows.
        ``path``: at index d of a slot's rows the row of the path at depth d, relative to the slot's first row; d itself
        for d >= ``count``. ``bonus``: the target's own token after the path.
        """
        if len(tokens) == len(layout.first) == 1:  # AR: on a CPU the operations below take a fortieth of such a step
            return layout.count.long(), tokens.new_zeros(1, dtype=torch.int64), next_token
        reach, rank = ancestry.rows, layout.rank
        taken, bonus = accept_path(tokens, parents.long(), accept.bool(), reach, next_token, layout)
        count = bonus.new_zeros(len(bonus), dtype=torch.int64).index_add_(0, layout.owner, taken.long())
        # Rows that are not on a path go to an extra entry at the end, which is dropped.
        place = torch.where(taken, layout.of_rows(layout.first) + ancestry.depth, len(tokens))
        path = torch.cat([rank, rank[:1]]).index_copy_(0, place, rank)[:-1]
        return count, path, bonus

    def commit(self, buffers: Sequence[Tensor], layout: Layout, lengths: Tensor, count: Tensor, path: Tensor) -> None:
        """Move the cells of accepted rows to the front of their slot's scratch cells.

        ``buffers``: [layers, S, heads, L, size] each; ``count`` [S] and ``path`` [N] as returned by :meth:`accept`.
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
        """Write the inputs of a draft head from a step's outcome, for the slots whose head follows the step.

        S slots, N rows, P: the most rows of a path.

        Args:
            firsts: int32 [S], row of each slot's root.
            hidden: [N, size], hidden states of each slot's rows in the order of its path.
            follows: int32 [S], 0 or 1; the outputs below are left unchanged for slots with 0.
            new, anchor: int32 [S], output: number of rows of the path, and the token after its end.
            tokens: int32 [P, S], output: the token after each row of the path, then 0.
            features: [S, P, size], output for the rows of the path: their ``hidden``.
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
        """Find the K best tokens of each row of a draft head's ``scores`` [..., V]; equal scores are in any order.

        Returns (log-probabilities float32 [..., K] over all V tokens, tokens int64 [..., K]).
        """
        top, found = scores.topk(count, dim=-1)
        wide = torch.promote_types(scores.dtype, torch.float32)
        return (top.to(wide) - scores.to(wide).logsumexp(-1, keepdim=True)).float(), found

    def same_graph(self, sampling: Sampling) -> Sampling:
        """Return the parameters of ``sampling`` that are baked into a captured graph: here all of them."""
        return sampling

    def set_sampling(self, sampling: Sampling) -> None:
        """Set the sampling parameters of the next steps; here they are baked in, so this does nothing."""


#: Type of every implementation.
Ops = TorchOps


def shared_cells(sees: Tensor, layout: Layout) -> Tensor:
    """Fewest cells that a row of each slot sees, [S], from ``sees`` [N]; 0 for a slot without rows."""
    seen = torch.where(layout.real, sees, torch.iinfo(sees.dtype).max)
    least = torch.full_like(layout.count, torch.iinfo(sees.dtype).max, dtype=sees.dtype)
    least = least.scatter_reduce(0, layout.owner, seen, "amin")
    return torch.where(layout.count > 0, least, 0)


def ancestors(parents: Tensor) -> Tensor:
    """Find the rows that each row may attend to inside its tree: itself and its ancestors.

    Pointer jumping: after round k a row knows its ancestors at distances below 2^k, so log2(N) rounds are enough for
    any trees, without a loop over rows.

    ``parents``: int64 [N]; roots and padding rows are their own parents. Returns bool [N, N]; element (i, j): row j is
    row i or one of its ancestors.
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
    """Find the longest path of each slot that the target itself would have produced.

    A row matches when its token is the target's next token after its parent; it is reached when it and all its
    ancestors match and may be accepted. The deepest reached row wins, and among equally deep rows the first one (their
    paths hold the same tokens).

    Args:
        tokens: [N], token of each row.
        parents: int64 [N], parent row; roots and padding rows are their own parents.
        accept: bool [N]; False for draft-only and padding rows.
        reach: bool [N, N] from :func:`ancestors`.
        next_token: [N], the target's token after each row.

    Returns:
        (path, bonus): ``path`` bool [N] marks the committed rows, roots included; ``bonus`` [S] is the target's own
        token after each slot's last committed row, and meaningless for a slot without rows.
    """
    rows = len(tokens)
    every = torch.arange(rows, device=tokens.device)
    root = layout.real & (layout.rank == 0)
    matches = (tokens == next_token[parents]) & accept | root
    reached = ~(reach & ~matches).any(-1) & layout.real
    # One number orders rows by depth, then by lowest index, so that the maximum is unique.
    order = torch.where(reached, reach.sum(-1) * (rows + 1) + (rows - every), 0)
    best = torch.zeros(len(layout.first), dtype=torch.int64, device=tokens.device)
    best = best.scatter_reduce(0, layout.owner, order, "amax") % (rows + 1)
    last = (rows - best).clamp(max=rows - 1)
    return reach[layout.of_rows(last), every] & layout.real, next_token[last]


def typical_next(
    rule: TypicalAcceptance,
    probabilities: Tensor,
    tokens: Tensor,
    parents: Tensor,
    accept: Tensor,
    depth: Tensor,
    layout: Layout,
) -> Tensor:
    """Return the token after each row, int64 [N], such that exact acceptance accepts what the rule accepts.

    The rule is turned into next tokens: along the winning path each row's next token is the token of its child on that
    path, and everywhere else it is the target's most probable token. Exact acceptance of these next tokens accepts the
    winning path, so that nothing else of a step differs (Cai et al. 2024, §2.3.1).

    The most probable token always passes, since delta is below 1 and exp(-entropy) is at most its probability. So the
    target's own token after the winning path is not among the drafts.

    Args:
        probabilities: float32 [N, V], distribution of the token after each row.
        tokens: [N], token of each row.
        parents: [N], parent row; roots and padding rows are their own parents.
        accept: [N], 0 for draft-only and padding rows.
        depth: [N], number of ancestors of each row.
    """
    up, tokens, rows = parents.long(), tokens.long(), len(tokens)
    root = layout.real & (layout.rank == 0)
    entropy = torch.special.entr(probabilities).sum(-1)
    threshold = (rule.delta * (-entropy).exp()).clamp(max=rule.epsilon)
    mine = probabilities[up, tokens]
    reached = ((mine > threshold[up]) & accept.bool() & layout.real) | root
    likelihood = torch.where(root, 0.0, mine.double().log())
    jumps = [up]
    for _ in range(rows.bit_length()):  # pointer jumping: each round reads twice as many ancestors
        up = jumps[-1]
        reached, likelihood = reached & reached[up], likelihood + likelihood[up]
        jumps.append(up[up])
    deepest = _largest(torch.where(reached, depth.long(), -1), layout)
    reached = reached & (depth == deepest)
    likeliest = _largest(torch.where(reached, likelihood, -torch.inf), layout)
    reached = reached & (likelihood == likeliest)
    every = torch.arange(rows, device=tokens.device)
    last = -_largest(torch.where(reached, -every, -rows), layout)
    path = (every == last) & layout.real
    for up in jumps:
        path = path | (torch.zeros_like(every).scatter_reduce(0, up, path.long(), "amax") > 0)
    # Rows that are not on a path go to an extra entry at the end, which is dropped.
    place = torch.where(path & ~root, jumps[0], rows)
    best = probabilities.argmax(-1)
    return torch.cat([best, best[:1]]).index_copy_(0, place, tokens)[:-1]


def _largest(values: Tensor, layout: Layout) -> Tensor:
    """The largest value among the rows of each row's slot, [N]; that of padding rows is arbitrary."""
    least = -torch.inf if values.is_floating_point() else -len(values) - 1
    values = torch.where(layout.real, values, least)
    found = torch.full((len(layout.first),), least, dtype=values.dtype, device=values.device)
    return found.scatter_reduce(0, layout.owner, values, "amax")[layout.owner]
