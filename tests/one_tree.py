"""The engine's acceptance rule on a single tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specbench.decoding.tree import TokenTree
from specbench.engine.layout import Layout
from specbench.engine.ops import accept_path, ancestors


def accepted(tree: TokenTree, following: Sequence[int]) -> tuple[list[int], int]:
    """Rows of the path, and the token after its last, where the target says ``following`` after each row."""
    parents = torch.tensor([0, *tree.parents[1:]])
    allowed = torch.tensor(list(tree.accept) if tree.accept else [True] * len(tree))
    layout = Layout.even(1, len(tree), torch.device("cpu"))
    path, bonus = accept_path(
        torch.tensor(list(tree.tokens)), parents, allowed, ancestors(parents), torch.tensor(following), layout
    )
    return path.nonzero().flatten().tolist(), int(bonus)
