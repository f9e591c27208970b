"""Operations between a layer's first product and its attention: norms per head, rotary embedding, store to the cache.

Rounds where transformers' layers round: a head's norm, each of the two products of the rotation, and their sum.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.engine.kernels import dependent
from specbench.engine.kernels.bits import UNALIGNED
from specbench.engine.kernels.dependent import wait_for_inputs
from specbench.engine.layers.parts import Attention
from specbench.engine.layout import Layout

_TILE = 1024  # elements of a tile for any number of rows: the order of a norm's sum does not depend on other rows
_OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}


@triton.jit
def _scaled(normed, weight, at, inside, OFFSET: tl.constexpr, DTYPE: tl.constexpr):
    """float32 [T, W] times ``weight``, rounded to ``DTYPE``."""
    factor = tl.load(weight + at, mask=inside, other=0.0)[None, :].to(tl.float32)
    if OFFSET:
        return (normed * (1.0 + factor)).to(DTYPE).to(tl.float32)
    else:
        return (normed.to(DTYPE).to(tl.float32) * factor).to(DTYPE).to(tl.float32)


@triton.jit
def _turned(
    source, at, mask, weight, cos, sin, row, eps,
    SIZE: tl.constexpr, ROTARY: tl.constexpr, NORM: tl.constexpr, OFFSET: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Heads [T, W] of rows, normalized and rotated: element i is paired with element i + ROTARY / 2."""
    half: tl.constexpr = ROTARY // 2
    turns = at < ROTARY
    partner = tl.where(at < half, at + half, tl.where(turns, at - half, at))
    x = tl.load(source + at[None, :], mask=mask, other=0.0).to(tl.float32)
    other = tl.load(source + partner[None, :], mask=mask, other=0.0).to(tl.float32)
    if NORM:
        root = (1.0 / tl.sqrt_rn(tl.sum(x * x, 1) / SIZE + eps))[:, None]
        x = _scaled(x * root, weight, at, at < SIZE, OFFSET, DTYPE)
        other = _scaled(other * root, weight, partner, at < SIZE, OFFSET, DTYPE)
    wave = row[:, None] * ROTARY + at[None, :]
    rotates = mask & turns[None, :]
    straight = x * tl.load(cos + wave, mask=rotates, other=0.0).to(tl.float32)
    across = tl.where((at < half)[None, :], -other, other) * tl.load(sin + wave, mask=rotates, other=0.0).to(tl.float32)
    turned = straight.to(DTYPE).to(tl.float32) + across.to(DTYPE).to(tl.float32)
    return tl.where(turns[None, :], turned, x).to(DTYPE)


# Not specialized, so that prompts of any length need no other compilation.
@triton.jit(do_not_specialize=["rows", "slots"], do_not_specialize_on_alignment=UNALIGNED)
def _rotate(
    query, key, value, cos, sin, query_weight, key_weight, turned, keys, values, slot_of, firsts, lengths,
    rows, slots, heads, kv_heads, query_row, key_row, value_row,
    keys_slot, keys_head, keys_cell, values_slot, values_head, values_cell, query_eps, key_eps,
    SIZE: tl.constexpr, VALUE: tl.constexpr, ROTARY: tl.constexpr, QUERY_NORM: tl.constexpr, KEY_NORM: tl.constexpr,
    QUERY_OFFSET: tl.constexpr, KEY_OFFSET: tl.constexpr, TILE_ROWS: tl.constexpr, WIDE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Program (head, tile of rows): query heads first, then key heads, then value heads."""
    wait_for_inputs(PDL)
    head, row = tl.program_id(0), tl.program_id(1) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    at = tl.arange(0, WIDE)
    dtype = turned.dtype.element_ty
    alive = row < rows
    wide = row.to(tl.int64)
    if head < heads:
        mask = alive[:, None] & (at < SIZE)[None, :]
        source = query + wide[:, None] * query_row + head * SIZE
        found = _turned(
            source, at, mask, query_weight, cos, sin, row, query_eps, SIZE, ROTARY, QUERY_NORM, QUERY_OFFSET, dtype
        )
        tl.store(turned + (wide[:, None] * heads + head) * SIZE + at[None, :], found, mask=mask)
        return
    slot = tl.load(slot_of + row, mask=alive, other=slots)
    real = slot < slots
    cell = tl.load(lengths + slot, mask=real, other=0) + row - tl.load(firsts + slot, mask=real, other=0)
    slot, cell = slot.to(tl.int64)[:, None], cell.to(tl.int64)[:, None]
    kv_head = (head - heads) % kv_heads
    if head < heads + kv_heads:
        mask = real[:, None] & (at < SIZE)[None, :]
        source = key + wide[:, None] * key_row + kv_head * SIZE
        found = _turned(source, at, mask, key_weight, cos, sin, row, key_eps, SIZE, ROTARY, KEY_NORM, KEY_OFFSET, dtype)
        target = keys + slot * keys_slot + kv_head.to(tl.int64) * keys_head + cell * keys_cell
        tl.store(target + at[None, :], found, mask=mask)
    else:
        mask = real[:, None] & (at < VALUE)[None, :]
        found = tl.load(value + wide[:, None] * value_row + kv_head * VALUE + at[None, :], mask=mask, other=0.0)
        target = values + slot * values_slot + kv_head.to(tl.int64) * values_head + cell * values_cell
        tl.store(target + at[None, :], found, mask=mask)


def rotate(
    products: tuple[Tensor, Tensor, Tensor],
    attention: Attention,
    rotary: tuple[Tensor, Tensor],
    keys: Tensor,
    values: Tensor,
    layout: Layout,
    lengths: Tensor,
) -> Tensor:
    """Return rotated queries; store rotated keys, and values, in the cells after each slot's length, without padding.

    Args:
        products: queries [N, heads x size], keys [N, KV heads x size], values [N, KV heads x value size]; the last
            dimension contiguous. Usually parts of one tensor.
        attention: the layer's attention.
        rotary: cos and sin [1, N, R] of the rows, contiguous, for the first R elements of a head, rotated by halves as
            in Llama.
        keys: the layer's cache [S, KV heads, L, size], the last dimension contiguous.
        values: [S, KV heads, L, value size], the last dimension contiguous.
        layout: layout of the rows over the S slots.
        lengths: integer [S], cached tokens of each slot.

    Returns:
        [1, heads, N, size], a head's elements contiguous.

    Raises:
        ValueError: a last dimension is not contiguous, or the shape of the rotary embedding does not fit.
    """
    query, key, value = products
    heads, (cos, sin) = attention.heads, rotary
    rows, turning = query.shape[0], cos.shape[-1]
    if any(each.stride(-1) != 1 for each in (*products, keys, values, lengths)):
        raise ValueError("rotate needs products, caches and lengths that are contiguous in their last dimension")
    if cos.shape != (1, rows, turning) or sin.shape != cos.shape or turning % 2 or turning > heads.size:
        raise ValueError(f"a rotary embedding of {[*cos.shape]} does not fit {rows} rows of heads of {heads.size}")
    if not cos.is_contiguous() or not sin.is_contiguous():
        raise ValueError("rotate needs a rotary embedding that is contiguous")
    wide = triton.next_power_of_2(max(heads.size, heads.value_size))
    tile_rows = max(1, _TILE // wide)
    turned = torch.empty(rows, heads.heads, heads.size, dtype=query.dtype, device=query.device)
    of_query, of_key = attention.of_query, attention.of_key
    _rotate[(heads.heads + 2 * heads.kv_heads, triton.cdiv(rows, tile_rows))](
        query, key, value, cos, sin, cos if of_query is None else of_query.weight,
        cos if of_key is None else of_key.weight, turned, keys, values, layout.slot, layout.first, lengths,
        rows, len(layout.first), heads.heads, heads.kv_heads, query.stride(0), key.stride(0), value.stride(0),
        *keys.stride()[:3], *values.stride()[:3],
        0.0 if of_query is None else of_query.eps, 0.0 if of_key is None else of_key.eps,
        SIZE=heads.size, VALUE=heads.value_size, ROTARY=turning,
        QUERY_NORM=of_query is not None, KEY_NORM=of_key is not None,
        QUERY_OFFSET=0 if of_query is None else of_query.offset, KEY_OFFSET=0 if of_key is None else of_key.offset,
        TILE_ROWS=tile_rows, WIDE=wide, **_OPTIONS, **dependent.options(query.device),
    )  # fmt: skip
    return turned.transpose(0, 1)[None]
