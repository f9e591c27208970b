"""Every operation of a step by the kernels equals the oracle's, called with the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.decoders import flat, following, forest, sizes_of
from torch import Tensor

from specbench.engine.kernels import ops as ops_of_kernels
from specbench.engine.kernels.bits import MOST_ROWS, reach_of, widest_slot
from specbench.engine.kernels.ops import TritonOps
from specbench.engine.ops import Ops, TorchOps
from specbench.engine.pack import Fields
from specbench.engine.sampler import Sampling

ORACLE = TorchOps()


def kernels(device: str) -> TritonOps:
    return TritonOps(torch.device(device))


def noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


any_rows = given(
    seed=st.integers(0, 9999),
    slots=st.integers(1, 5),
    most=st.integers(1, 70),
    spare=st.integers(0, 5),
    known=st.booleans(),
)


def drawn(seed: int, slots: int, most: int, spare: int, known: bool, device: str) -> Fields:
    lengths = [(7 * slot + seed) % 13 for slot in range(slots)]
    trees = forest(seed, sizes_of(seed, slots, most))
    return flat(trees, slots, device, spare=spare, lengths=lengths, known=known)


def same_ancestry(fields: Fields, device: str) -> None:
    layout, real = fields.layout, fields.layout.real
    expected = ORACLE.ancestry(fields.parents, layout)
    found = kernels(device).ancestry(fields.parents, layout)
    assert found.depth.dtype == found.rows.dtype == torch.int32
    assert torch.equal(found.depth.long(), expected.depth)
    assert torch.equal(reach_of(found.rows, layout)[real], expected.rows[real])


@settings(max_examples=20, deadline=None)
@any_rows
def test_ancestry(device: str, **case: Any) -> None:
    same_ancestry(drawn(device=device, **case), device)


def same_acceptance(fields: Fields, seed: int, device: str, flags: torch.dtype = torch.int32) -> Tensor:
    """The counts, which were compared as all else was."""
    ops, layout, next_token = kernels(device), fields.layout, following(seed, fields)
    inputs = fields.tokens, fields.parents, fields.accept.to(flags)
    expected = ORACLE.accept(*inputs, ORACLE.ancestry(fields.parents, layout), next_token, layout)
    found = ops.accept(*inputs, ops.ancestry(fields.parents, layout), next_token, layout)
    assert {each.dtype for each in found} == {torch.int32}
    count, path, bonus = (each.to(there.dtype) for each, there in zip(found, expected, strict=True))
    assert torch.equal(count, expected[0])
    assert torch.equal(path, expected[1])
    assert torch.equal(bonus[count > 0], expected[2][count > 0])
    return count


@settings(max_examples=25, deadline=None)
@any_rows
@example(seed=1, slots=3, most=40, spare=3, known=False)
def test_accept(device: str, seed: int, **case: Any) -> None:
    same_acceptance(drawn(seed, device=device, **case), seed, device, (torch.int32, torch.bool)[seed % 2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(64, 64), (24, 16)])
def test_write(sizes: tuple[int, int], dtype: torch.dtype, device: str) -> None:
    for seed, most in enumerate((1, 5, 20)):
        fields = drawn(seed, 4, most, seed, known=True, device=device)
        rows, heads, cells = len(fields.tokens), 2, 60
        # As a model gives them: [1, N, heads, size] with heads and rows swapped.
        key, value = (noise(1, rows, heads, size, dtype=dtype, seed=size).transpose(1, 2).to(device) for size in sizes)
        found = [noise(4, heads, cells, size, dtype=dtype, seed=1).to(device) for size in sizes]
        expected = [buffer.clone() for buffer in found]
        for ops, (keys, values) in ((kernels(device), found), (ORACLE, expected)):
            ops.write(key, value, keys, values, fields.layout, fields.lengths)
        for buffer, wanted in zip(found, expected, strict=True):
            # The reference operations store padding in the last cell, which is never read.
            assert torch.equal(buffer[..., :-1, :], wanted[..., :-1, :])
            before = noise(4, heads, cells, buffer.shape[3], dtype=dtype, seed=1).to(device)
            assert torch.equal(buffer[:, :, -1], before[:, :, -1])


@settings(max_examples=15, deadline=None)
@any_rows
def test_commit(device: str, seed: int, **case: Any) -> None:
    fields = drawn(seed, device=device, **case)
    layout, slots = fields.layout, len(fields.lengths)
    # Random acceptance takes short paths only, so rows are taken at random here: ascending, from the root on.
    draw = torch.Generator().manual_seed(seed)
    path, count = layout.rank.cpu().clone(), torch.zeros(slots, dtype=torch.int64)
    for slot in range(slots):
        first, rows = int(layout.first[slot]), int(layout.count[slot])
        taken = torch.rand(rows, generator=draw) < 0.6
        taken[:1] = True
        chosen = taken.nonzero().flatten()
        count[slot] = len(chosen)
        path[first : first + len(chosen)] = chosen
    found = [noise(2, slots, 2, 110, size, seed=size).to(device) for size in (24, 16)]
    expected = [buffer.clone() for buffer in found]
    for dtype, ops, buffers in ((torch.int32, kernels(device), found), (torch.int64, ORACLE, expected)):
        ops.commit(buffers, layout, fields.lengths, count.to(device, dtype), path.to(device, dtype))
    for buffer, wanted in zip(found, expected, strict=True):
        assert torch.equal(buffer, wanted)


@pytest.mark.parametrize("size", [5, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("counts", "follows"), [((3, 0, 5), (1, 0, 1)), ((1, 4, 2), (0, 1, 1)), ((0, 0, 7), (0, 0, 1))]
)
def test_take(counts: tuple[int, ...], follows: tuple[int, ...], size: int, device: str) -> None:
    draw = torch.Generator().manual_seed(sum(counts))
    slots, places, rows = len(counts), 4, 12

    def some(*shape: int) -> Tensor:
        return torch.randint(0, 900, shape, generator=draw, dtype=torch.int32).to(device)

    firsts, row, path = [], 0, torch.arange(rows, dtype=torch.int32)
    kept = []
    for count in counts:
        firsts.append(row)
        # The path to a row of the slot: ascending, from the root on.
        kept.append(min(count, places, 1 + count // 2) if count else 0)
        chosen = [0, *sorted((torch.randperm(max(count - 1, 0), generator=draw)[: max(kept[-1] - 1, 0)] + 1).tolist())]
        path[row : row + count] = torch.arange(count, dtype=torch.int32)
        path[row : row + kept[-1]] = torch.tensor(chosen[: kept[-1]], dtype=torch.int32)
        row += count
    outcome = some(rows), path.to(device), torch.tensor(kept, dtype=torch.int32, device=device), some(slots)
    hidden = torch.randn(rows, size, generator=draw).to(device)
    found = []
    for ops in (ORACLE, kernels(device)):
        draw.manual_seed(1)
        given, features = some(6 + places, slots + 1)[:, :slots], torch.randn(slots, places, size, generator=draw)
        features = features.to(device, torch.float16)
        ops.take(
            outcome, torch.tensor(firsts, dtype=torch.int32, device=device), hidden,
            torch.tensor(follows, dtype=torch.int32, device=device), given[0], given[1], given[6:], features,
        )  # fmt: skip
        found.append((given, features))
    (given, features), (by_kernel, taken) = found
    assert torch.equal(given, by_kernel)
    assert torch.equal(features, taken)
    for slot, (first, count) in enumerate(zip(firsts, kept, strict=True)):
        if follows[slot]:
            following = [int(outcome[0][first + int(path[first + place])]) for place in range(count)]
            assert given[6:, slot].tolist() == following + [0] * (places - count)
            assert (int(given[0, slot]), int(given[1, slot])) == (count, int(outcome[3][slot]))
            assert torch.equal(features[slot, :count], hidden[first : first + count].half())


SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.7, seed=3),
    Sampling(temperature=0.7, top_k=5, seed=3),
    Sampling(temperature=1.2, top_p=0.8, seed=1 << 40),
]


def rows_of_logits(device: str) -> Tensor:
    return (noise(1, 9, 200, seed=2) * 3).bfloat16().to(device)


def chosen(ops: Ops, sampling: Sampling, device: str, dtype: torch.dtype = torch.int64) -> list[int]:
    """Next tokens of rows with positions in some type of integers; logits are far apart."""
    logits = rows_of_logits(device)
    positions = torch.arange(1000, 1009, dtype=dtype, device=device)[None]
    found: list[int] = ops.choose(logits, positions, sampling)[0].tolist()
    return found


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_choose(sampling: Sampling, dtype: torch.dtype, device: str) -> None:
    ops = kernels(device)
    ops.set_sampling(sampling)
    assert chosen(ops, sampling, device, dtype) == chosen(ORACLE, sampling, device, dtype)


@pytest.mark.parametrize("sampling", [*SAMPLINGS, Sampling(temperature=0.9, top_k=20, top_p=0.6)])
def test_filtered(sampling: Sampling, device: str) -> None:
    ops, logits = kernels(device), rows_of_logits(device)
    ops.set_sampling(sampling)
    # Without filters a temperature is baked in.
    found = ops.filtered(logits, ops.same_graph(sampling) if sampling.filters else sampling)
    assert torch.equal(found, ORACLE.filtered(logits, sampling))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_draw(sampling: Sampling, device: str) -> None:
    ops, logits, positions = kernels(device), rows_of_logits(device), torch.arange(1000, 1009, device=device)[None]
    ops.set_sampling(sampling)
    found = [each.draw(ORACLE.filtered(logits, sampling), positions, sampling).tolist() for each in (ops, ORACLE)]
    assert found[0] == found[1] == [chosen(ORACLE, sampling, device)]


def test_same_graph(device: str) -> None:
    assert len({kernels(device).same_graph(each) for each in (*SAMPLINGS, Sampling(temperature=1.9, seed=8))}) == 4


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_captured_and_later_inputs_choose_together(sampling: Sampling, device: str) -> None:
    """What the whole sampling chooses."""
    ops = kernels(device)
    ops.set_sampling(sampling)
    assert chosen(ops, ops.same_graph(sampling), device) == chosen(ORACLE, ORACLE.same_graph(sampling), device)


def test_set_sampling(device: str) -> None:
    ops, captured = kernels(device), SAMPLINGS[1]
    for sampling in (Sampling(temperature=1.9, seed=8), Sampling(temperature=0.3, seed=1 << 33), SAMPLINGS[1]):
        for each in (ops, ORACLE):
            each.set_sampling(sampling)
        assert chosen(ops, ops.same_graph(captured), device) == chosen(ORACLE, sampling, device)


@pytest.mark.parametrize(
    "sampling", [Sampling(1.3, top_k=40, top_p=0.5, seed=1 << 33), Sampling(0.4, top_k=1000, top_p=0.99, seed=5)]
)
def test_one_graph_serves_filters_of_any_size(sampling: Sampling, device: str) -> None:
    ops, captured = kernels(device), Sampling(temperature=0.7, top_k=5, top_p=0.8)
    ops.set_sampling(sampling)
    assert ops.same_graph(sampling) == ops.same_graph(captured)
    assert chosen(ops, ops.same_graph(captured), device) == chosen(ORACLE, sampling, device)


# ------------------------------------------------------------------ steps of many rows


def held(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that is launched only for slots of rows that a program holds."""

    def launch(*arguments: Any) -> Any:
        assert widest_slot(arguments[-1]) <= MOST_ROWS
        return kernel(*arguments)

    return launch


@pytest.mark.parametrize("known", [True, False], ids=["eager", "as captured"])
def test_more_rows_than_a_program_holds(known: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one slot, and of several that are small where the host knows it: those only are the kernels'."""

    for name in ("tree_bits", "accept_paths"):
        monkeypatch.setattr(ops_of_kernels, name, held(getattr(ops_of_kernels, name)))
    for seed, (sizes, spare) in enumerate((({1: 600}, 0), ({0: 300, 2: 270}, 30), ({0: 500, 1: 90, 3: 500}, 10))):
        fields = flat(forest(seed, sizes), 4, device, spare=spare, known=known)
        same_ancestry(fields, device)
        same_acceptance(fields, seed, device)
