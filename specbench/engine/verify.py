"""Ancestor masks and the acceptance rule, vectorised over slots and rows on the device (DESIGN §2).

Shapes: S slots, Q rows. Padding rows carry ``parents[row] == row`` and ``accept[row] == False``: they see only
themselves and can never be reached.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
