"""Rows of token trees one after the other, packed as a step packs them: what device operations are called with."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from random_trees import random_tree
from torch import Tensor

from specbench.decoding.tree import TokenTree
from specbench.engine import pack

VOCAB = 3  # few tokens, so that guesses are often right and siblings often equal


def forest(seed: int, sizes: Mapping[int, int], *, vocab: int = VOCAB) -> dict[int, TokenTree]:
    """By slot, a random tree of so many rows; every other one is deep, because its parents are near."""
    rng, found = random.Random(seed), {}
    for slot, size in sizes.items():
        tree = random_tree(rng, rng.randrange(vocab), vocab, size)
        if rng.random() < 0.5:
            parents = [-1] + [max(parent, row - 3) for row, parent in enumerate(tree.parents) if row]
            tree = TokenTree(tree.tokens, parents, tree.accept)
        found[slot] = tree
    return found


def sizes_of(seed: int, slots: int, most: int) -> dict[int, int]:
    """Rows of some of so many slots, at most ``most`` each; with holes, and at least one slot."""
    rng = random.Random(seed)
    taken = sorted(rng.sample(range(slots), rng.randint(1, slots)))
    return {slot: rng.randint(1, most) for slot in taken}


def flat(
    trees: Mapping[int, TokenTree],
    slots: int,
    device: str,
    *,
    spare: int = 0,
    height: int = 0,
    lengths: Sequence[int] | None = None,
    known: bool = False,
) -> pack.Fields:
    """A step's fields.

    Args:
        trees: by slot.
        slots: S.
        device: where they lie.
        spare: rows of padding.
        height: rows of a tile of attention.
        lengths: cached tokens of each slot; none by default.
        known: whether the layout says what the host knows of it, as that of an eager step does.
    """
    batch, cached = pack.Batch.of(trees), lengths or [0] * slots
    shape = pack.Shape(batch.rows + spare, slots, height)
    packed = np.full(shape.width_in, -7, dtype=np.int32)  # nothing may be left of it
    pack.fill(packed, shape, batch, cached)
    return pack.split(torch.from_numpy(packed).to(device), shape, batch.groups(cached) if known else None)


def following(seed: int, fields: pack.Fields, *, vocab: int = VOCAB) -> Tensor:
    """int32 [N], a next token of each row; rows of padding say what they hold, so that they match themselves."""
    rng = random.Random(seed)
    drawn = torch.tensor([rng.randrange(vocab) for _ in range(len(fields.tokens))], dtype=torch.int32)
    return torch.where(fields.layout.real, drawn.to(fields.tokens.device), fields.tokens)
