"""What stands between a layer's products, against transformers' formulas, rounding by rounding."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from support.decoders import flat
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

from specbench.decoding.tree import TokenTree
from specbench.engine.attention.interface import LayerAttention
from specbench.engine.kernels.gated import gated
from specbench.engine.kernels.norm import add_norm
from specbench.engine.kernels.rotate import rotate
from specbench.engine.layers.parts import Attention, Heads, Norm, norm_of

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
#: Relative error of a row: of sums in another order, and of values that fall to the other side of a rounding.
BOUND = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 3e-2}


def noise(*shape: int, seed: int, dtype: torch.dtype, device: str) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def close(found: Tensor, expected: Tensor) -> bool:
    error = (found.float() - expected.float()).norm() / expected.float().norm()
    return bool(error <= BOUND[expected.dtype])


def norm(kind: Any, size: int, dtype: torch.dtype, device: str, seed: int = 0) -> Norm:
    module = kind(size, eps=1e-5).to(device, dtype)
    module.weight.data = noise(size, seed=seed, dtype=dtype, device=device)
    return norm_of(module)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kinds", [(Qwen3RMSNorm, None), (Gemma3RMSNorm, Gemma3RMSNorm), (Qwen3RMSNorm, Gemma3RMSNorm)])
@pytest.mark.parametrize(("rows", "size"), [(1, 40), (5, 96), (3, 576)])
def test_sum_and_norm(rows: int, size: int, kinds: Any, dtype: torch.dtype, device: str) -> None:
    own, of_branch = (kind and norm(kind, size, dtype, device, seed) for seed, kind in enumerate(kinds))
    stream = noise(rows, 2 * size, seed=3, dtype=dtype, device=device)[:, size:]  # rows that do not follow each other
    branch = noise(rows, size, seed=4, dtype=dtype, device=device)
    normed, total = add_norm(stream, branch, own, of_branch)
    expected = stream + (of_branch.module(branch) if of_branch else branch)
    assert close(total, expected)
    if of_branch is None and dtype != torch.bfloat16:
        assert torch.equal(total, expected)
    assert close(normed, own.module(total))
    alone, same = add_norm(stream, None, own)
    assert same is stream
    assert close(alone, own.module(stream))


def test_rows_do_not_depend_on_each_other(device: str) -> None:
    own = norm(Qwen3RMSNorm, 96, torch.float32, device)
    stream, branch = (noise(7, 96, seed=seed, dtype=torch.float32, device=device) for seed in (1, 2))
    whole = add_norm(stream, branch, own)[0]
    assert all(torch.equal(add_norm(stream[at : at + 1], branch[at : at + 1], own)[0][0], whole[at]) for at in range(7))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "swish", "gelu_pytorch_tanh"])
@pytest.mark.parametrize(("rows", "size"), [(1, 24), (3, 1100)])
def test_activation(rows: int, size: int, activation: str, dtype: torch.dtype, device: str) -> None:
    both = 4 * noise(rows, 2 * size, seed=1, dtype=dtype, device=device)
    both[0, :2] = torch.tensor([-200.0, 200.0])  # where an exponential overflows
    gate, up = both.chunk(2, -1)
    found = gated(both, activation)
    assert close(found, ACT2FN[activation](gate) * up)
    assert found.isfinite().all()


#: (head size, value size, rotated elements); (query heads, KV heads); norms; offset of their weights.
SIZES = [(64, 64, 64), (80, 80, 32), (96, 64, 96), (128, 128, 128), (256, 256, 256)]
GROUPS = [(2, 2), (6, 2), (8, 1), (16, 1)]
# Every seventh has all pairs of sizes, groups, norms and types but few.
CASES = [
    pytest.param(*case, marks=[] if at % 7 == 0 else pytest.mark.slow)
    for at, case in enumerate(product(SIZES, GROUPS, (None, Qwen3RMSNorm, Gemma3RMSNorm), DTYPES))
]


@pytest.mark.parametrize(("sizes", "heads", "kind", "dtype"), CASES)
def test_norms_rotation_and_store(
    sizes: tuple[int, int, int], heads: tuple[int, int], kind: Any, dtype: torch.dtype, device: str
) -> None:
    size, value_size, turning = sizes
    queries, kv = heads
    trees = {0: TokenTree.chain([0] * 4), 2: TokenTree.chain([0] * 7)}
    layout = flat(trees, 3, device, spare=2).layout
    rows, lengths = len(layout.slot), torch.tensor([3, 0, 5], dtype=torch.int32, device=device)
    widths = queries * size, kv * size, kv * value_size
    both = noise(rows, sum(widths), seed=1, dtype=dtype, device=device)
    query, key, value = both.split(widths, -1)
    of_query, of_key = (None if kind is None else norm(kind, size, dtype, device, seed) for seed in (5, 6))
    angles = noise(1, rows, turning // 2, seed=2, dtype=torch.float32, device=device)
    cos, sin = (torch.cat([wave, wave], -1).to(dtype) for wave in (angles.cos(), angles.sin()))
    keys, values = (noise(3, kv, 20, each, seed=7, dtype=dtype, device=device) for each in (size, value_size))
    expected_keys, expected_values = keys.clone(), values.clone()
    linear = nn.Linear(1, 1)
    attention = Attention(
        nn.Identity(), 0, (linear,), of_query, of_key, linear, Heads(queries, kv, size, value_size, LayerAttention())
    )
    found = rotate((query, key, value), attention, (cos, sin), keys, values, layout, lengths)

    def turned(x: Tensor, count: int, of: Norm | None) -> Tensor:
        x = x.view(1, rows, count, size)
        x = (x if of is None else of.module(x)).transpose(1, 2)
        head, rest = x[..., :turning], x[..., turning:]
        return torch.cat([apply_rotary_pos_emb(head, head, cos, sin)[0], rest], -1)

    expected, new = turned(query, queries, of_query), turned(key, kv, of_key)
    for slot, first, count, at in ((0, 0, 4, 3), (2, 4, 7, 5)):
        expected_keys[slot, :, at : at + count] = new[0, :, first : first + count]
        rows_of = value[first : first + count].view(count, kv, value_size)
        expected_values[slot, :, at : at + count] = rows_of.transpose(0, 1)
    assert found.shape == expected.shape
    assert close(found, expected)
    assert close(keys, expected_keys)
    assert torch.equal(values, expected_values)
    if kind is None and dtype != torch.bfloat16:
        assert torch.equal(found, expected)
        assert torch.equal(keys, expected_keys)
