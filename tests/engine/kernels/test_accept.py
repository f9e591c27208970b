"""The acceptance kernel chooses the path and the token of ``ops.accept_path``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specbench.engine.kernels.accept import accept_paths, tree_bits
from specbench.engine.ops import accept_path, ancestors


def check(case: Any, device: str, *, forced: Tensor | None = None, flags: torch.dtype = torch.int32) -> Tensor:
    """Compares every output; returns the counts."""
    rows = case.tokens.shape[1]
    expected_next = case.next_token if forced is None else torch.where(forced >= 0, forced, case.next_token)
    parents = case.parents.long()
    taken, expected_bonus = accept_path(
        case.tokens, parents, case.accept.bool(), ancestors(parents), expected_next.clone()
    )
    next_token = case.next_token.to(device, copy=True)
    count, path, bonus = accept_paths(
        case.tokens.to(device),
        case.parents.to(device),
        case.accept.to(device, flags),
        *tree_bits(case.parents.to(device)),
        next_token,
        None if forced is None else forced.to(device),
    )
    assert count.dtype == path.dtype == bonus.dtype == torch.int32
    assert torch.equal(next_token.cpu(), expected_next)
    assert torch.equal(bonus.cpu(), expected_bonus)
    assert torch.equal(count.cpu(), taken.sum(-1).to(torch.int32))
    for slot, chosen in enumerate(taken):
        kept = chosen.nonzero().flatten().tolist()
        assert path[slot].tolist() == kept + list(range(len(kept), rows))
    return count.cpu()


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 9999),
    slots=st.integers(1, 3),
    rows=st.integers(1, 70),
    spare=st.integers(0, 5),
    vocab=st.integers(1, 3),
    flags=st.sampled_from([torch.int32, torch.bool]),
)
def test_paths_equal_the_reference(
    batch: Callable[..., Any],
    device: str,
    seed: int,
    slots: int,
    rows: int,
    spare: int,
    vocab: int,
    flags: torch.dtype,
) -> None:
    check(batch(seed, slots, rows + spare, spare=spare, vocab=vocab), device, flags=flags)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 9999), rows=st.integers(1, 40))
def test_forced_tokens_take_the_place_of_the_targets(
    batch: Callable[..., Any], device: str, seed: int, rows: int
) -> None:
    case = batch(seed, 2, rows + 2, spare=2)
    generator = torch.Generator().manual_seed(seed)
    forced = torch.randint(-2, 3, case.tokens.shape, generator=generator, dtype=torch.int32)
    check(case, device, forced=forced)


def test_the_largest_tree(batch: Callable[..., Any], device: str) -> None:
    count = check(batch(8, 2, 512, spare=7, chain=True), device)
    assert count[0] > 1


def test_a_chain_of_right_guesses_is_taken_whole(batch: Callable[..., Any], device: str) -> None:
    case = batch(2, 1, 512)
    chain = type(case)(
        torch.arange(512, dtype=torch.int32)[None],
        (torch.arange(512, dtype=torch.int32) - 1).clamp_min(0)[None],
        torch.ones(1, 512, dtype=torch.int32),
        torch.arange(1, 513, dtype=torch.int32)[None],
    )
    assert check(chain, device).tolist() == [512]


def accepted(tokens: list[int], parents: list[int], following: list[int], device: str) -> tuple[list[int], int]:
    fields = [torch.tensor([each], dtype=torch.int32, device=device) for each in (tokens, parents, following)]
    flags = torch.ones_like(fields[0])
    count, path, bonus = accept_paths(fields[0], fields[1], flags, *tree_bits(fields[1]), fields[2])
    return path[0, : int(count)].tolist(), int(bonus)


def test_of_duplicate_siblings_the_deeper_wins_and_else_the_first(device: str) -> None:
    assert accepted([9, 4, 4, 7], [0, 0, 0, 2], [4, 8, 7, 5], device) == ([0, 2, 3], 5)
    assert accepted([9, 4, 4, 6], [0, 0, 0, 2], [4, 8, 7, 5], device) == ([0, 1], 8)
    assert accepted([9, 1, 2, 3], [0, 0, 0, 2], [4, 8, 7, 5], device) == ([0], 4)


def test_inputs_may_lie_between_other_fields(batch: Callable[..., Any], device: str) -> None:
    case = batch(11, 3, 40, spare=3)
    fields = torch.stack([case.tokens, case.parents, case.accept, case.next_token], 1).to(device)
    tokens, parents, accept, next_token = fields.unbind(1)
    masks = tree_bits(parents)
    apart = accept_paths(tokens, parents, accept, *masks, next_token)
    copies = [each.contiguous() for each in (tokens, parents, accept, next_token)]
    whole = accept_paths(copies[0], copies[1], copies[2], *masks, copies[3])
    assert all(torch.equal(one, other) for one, other in zip(apart, whole, strict=True))
    with pytest.raises(ValueError, match="contiguous"):
        accept_paths(tokens, parents, accept, masks[0].transpose(1, 2), masks[1], next_token)
