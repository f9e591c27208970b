"""Typical acceptance on the device: which drafts of a step are probable enough (Cai et al. 2024, §2.3.1).

The rule is turned into next tokens: along the winning path each row's next token is the token of its child on that
path, and everywhere else it is the target's most probable token. Exact acceptance of these next tokens accepts the
winning path, so that nothing else of a step differs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.decoding import TypicalAcceptance
from specbench.engine.layout import Layout


def typical_next(
    rule: TypicalAcceptance,
    probabilities: Tensor,
    tokens: Tensor,
    parents: Tensor,
    accept: Tensor,
    depth: Tensor,
    layout: Layout,
) -> Tensor:
    """Return the token after each row, int64 [N], such that accepted drafts are those that the rule accepts.

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
