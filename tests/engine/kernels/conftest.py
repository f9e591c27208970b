"""Kernels are tested on the device where there is one, and in Triton's interpreter where there is none."""

from __future__ import annotations

import importlib.util
import os
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from random_trees import random_tree
from torch import Tensor

# Read when a kernel is defined, so before anything imports triton.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]


@dataclass(frozen=True)
class Batch:
    """Trees of several slots, padded to Q rows; what ``accept_path`` is asked with. All int32 [S, Q] on the CPU."""

    tokens: Tensor
    parents: Tensor
    accept: Tensor
    next_token: Tensor


def _batch(seed: int, slots: int, rows: int, *, vocab: int = 3, spare: int = 0, chain: bool = False) -> Batch:
    """Random trees of at most ``rows - spare`` rows; the last slot's has that many.

    A small vocabulary makes guesses right and siblings equal often. Padding rows hold tokens that would match. With
    ``chain`` the first slot is a chain of right guesses, the deepest tree there is.
    """
    rng = random.Random(seed)
    fields: list[list[list[int]]] = [[], [], [], []]
    for slot in range(slots):
        size = rows - spare if slot == slots - 1 else rng.randint(1, rows - spare)
        tree = random_tree(rng, rng.randrange(vocab), vocab, size)
        tokens, parents = list(tree.tokens), [0, *tree.parents[1:]]
        accept = [1] * size if tree.accept is None else [int(each) for each in tree.accept]
        if rng.random() < 0.5:  # near parents make deep trees
            parents = [0] + [max(parent, row - 3) for row, parent in enumerate(parents) if row]
        following = [rng.randrange(vocab) for _ in range(rows)]
        if chain and slot == 0:
            parents, accept = [max(0, row - 1) for row in range(size)], [1] * size
            following[: size - 1] = tokens[1:]
        padding = range(size, rows)
        tokens += [following[0]] * len(padding)
        for field, values in zip(
            fields, (tokens, [*parents, *padding], accept + [0] * len(padding), following), strict=True
        ):
            field.append(values)
    return Batch(*(torch.tensor(field, dtype=torch.int32) for field in fields))


@pytest.fixture(scope="session")
def batch() -> Callable[..., Batch]:
    return _batch


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session", autouse=True)
def _interpreted(device: str) -> None:
    import triton
    import triton.language as tl

    if device == "cpu" and isinstance(tl.sum, triton.JITFunction):
        pytest.fail("triton was imported before TRITON_INTERPRET was set; set it in tests/conftest.py")
