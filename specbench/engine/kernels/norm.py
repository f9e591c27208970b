"""Add a branch to the residual stream and normalize the sum, in one pass.

Rounds where transformers' layers round: the branch's own norm, the sum and the normalised row are each rounded to the
model's dtype, and sums inside a norm are float32. Compiled without fused multiply-add, so that a product is rounded
before it is added.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.engine.kernels import dependent
from specbench.engine.kernels.dependent import wait_for_inputs
from specbench.engine.layers.parts import Norm

_OPTIONS = {"enable_fp_fusion": False}


@triton.jit
def _scaled(x, weight, at, inside, eps, SIZE: tl.constexpr, OFFSET: tl.constexpr, DTYPE: tl.constexpr):
    """Divide a float32 row by its root mean square and multiply by ``weight``; the result is in ``DTYPE``."""
    normed = x * (1.0 / tl.sqrt_rn(tl.sum(x * x, 0) / SIZE + eps))
    factor = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    if OFFSET:  # Gemma's norm, without rounding in between
        return (normed * (1.0 + factor)).to(DTYPE)
    else:
        return (normed.to(DTYPE).to(tl.float32) * factor).to(DTYPE)


@triton.jit
def _add_norm(
    residual, branch, weight, branch_weight, total, normed, residual_row, branch_row, eps, branch_eps,
    SIZE: tl.constexpr, ADDS: tl.constexpr, BRANCH_NORM: tl.constexpr, OFFSET: tl.constexpr,
    BRANCH_OFFSET: tl.constexpr, WIDE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (row): one program per row, so that the order of its sum does not depend on other rows."""
    wait_for_inputs(PDL)
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, WIDE)
    inside = at < SIZE
    dtype = normed.dtype.element_ty
    x = tl.load(residual + row * residual_row + at, mask=inside, other=0.0)
    if ADDS:
        more = tl.load(branch + row * branch_row + at, mask=inside, other=0.0)
        if BRANCH_NORM:
            more = _scaled(more.to(tl.float32), branch_weight, at, inside, branch_eps, SIZE, BRANCH_OFFSET, dtype)
        x = (x.to(tl.float32) + more.to(tl.float32)).to(dtype)
        tl.store(total + row * SIZE + at, x, mask=inside)
    found = _scaled(x.to(tl.float32), weight, at, inside, eps, SIZE, OFFSET, dtype)
    tl.store(normed + row * SIZE + at, found, mask=inside)


def add_norm(
    residual: Tensor, branch: Tensor | None, norm: Norm, branch_norm: Norm | None = None
) -> tuple[Tensor, Tensor]:
    """Add a branch to a residual stream and normalize the sum.

    Args:
        residual: [N, size], the last dimension contiguous.
        branch: [N, size] of the same dtype, the last dimension contiguous; None to add nothing.
        norm: norm of the sum.
        branch_norm: norm of the branch, before it is added.

    Returns:
        (norm of the sum, the sum), [N, size] each; without a branch, the second is ``residual`` itself.

    Raises:
        ValueError: rows are not contiguous, or differ in dtype.
    """
    rows, size = residual.shape
    given = (residual,) if branch is None else (residual, branch)
    if any(each.stride(-1) != 1 or each.dtype != norm.weight.dtype for each in given):
        raise ValueError("add_norm needs rows that are contiguous, in the dtype of the norm's weight")
    normed = torch.empty(rows, size, dtype=residual.dtype, device=residual.device)
    total = residual if branch is None else torch.empty_like(normed)
    more, before = residual if branch is None else branch, branch_norm or norm
    wide = triton.next_power_of_2(size)
    _add_norm[(rows,)](
        residual, more, norm.weight, before.weight, total, normed, residual.stride(0), more.stride(0),
        norm.eps, before.eps,
        SIZE=size, ADDS=branch is not None, BRANCH_NORM=branch_norm is not None,
        OFFSET=norm.offset, BRANCH_OFFSET=before.offset, WIDE=wide, num_warps=warps_for(wide), **_OPTIONS,
        **dependent.options(residual.device),
    )  # fmt: skip
    return normed, total


def warps_for(wide: int) -> int:
    """Warps of a program for a row: a thread has 16 elements, in two loads of 16 bytes."""
    return min(16, max(1, wide // 512))
