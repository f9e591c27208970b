"""Middle part of a gated MLP: activation of one half of a row times the other half."""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specbench.engine.kernels import dependent
from specbench.engine.kernels.dependent import wait_for_inputs

_BLOCK = 1024
_OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}


@triton.jit
def _sigmoid(x):
    """Sigmoid of float32; 0 for large negative numbers, never NaN."""
    return tl.div_rn(1.0, 1.0 + tl.exp(-x))


@triton.jit
def _gated(
    both, out, both_row, SIZE: tl.constexpr, SILU: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Program (block of columns, row)."""
    wait_for_inputs(PDL)
    at, row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1).to(tl.int64)
    inside = at < SIZE
    x = tl.load(both + row * both_row + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * both_row + SIZE + at, mask=inside, other=0.0).to(tl.float32)
    if SILU:
        active = x * _sigmoid(x)
    else:  # the tanh form of GELU; tanh(y) = 2 sigmoid(2y) - 1
        inner = 0.7978845608028654 * (x + 0.044715 * (x * x * x))
        active = x * _sigmoid(2.0 * inner)
    dtype = out.dtype.element_ty
    tl.store(out + row * SIZE + at, (active.to(dtype).to(tl.float32) * up).to(dtype), mask=inside)


def gated(both: Tensor, activation: str) -> Tensor:
    """Compute the activation of the first half of each row times its second half.

    Args:
        both: [N, 2 x size], gate before up; the last dimension contiguous.
        activation: one of :data:`specbench.engine.layers.parts.ACTIVATIONS`.

    Returns:
        [N, size], contiguous.

    Raises:
        ValueError: rows are not contiguous.
    """
    if both.stride(-1) != 1:
        raise ValueError("gated needs rows that are contiguous")
    rows, size = both.shape[0], both.shape[1] // 2
    out = torch.empty(rows, size, dtype=both.dtype, device=both.device)
    _gated[(triton.cdiv(size, _BLOCK), rows)](
        both, out, both.stride(0), SIZE=size, SILU=activation in ("silu", "swish"), BLOCK=_BLOCK, **_OPTIONS,
        **dependent.options(both.device),
    )  # fmt: skip
    return out
