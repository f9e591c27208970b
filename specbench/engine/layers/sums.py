"""Sums: products of half-precision numbers are added up in float32 throughout, while an engine is open.

By default torch lets cuBLAS round the parts of a sum that it splits to the half precision. That is more noise than the
product needs, and how a sum is split depends on how many rows there are, so two steps could part at more tokens.
"""

from __future__ import annotations

import torch

_FLAGS = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")
_before: dict[str, bool] = {}
_open = 0


class WideSums:
    """Holds torch's settings of this process until :meth:`close`; the last holder puts back what was set before."""

    def __init__(self) -> None:
        global _open
        self._held, _open = True, _open + 1
        if _open == 1:
            _before.update({name: getattr(torch.backends.cuda.matmul, name) for name in _FLAGS})
        for name in _FLAGS:
            setattr(torch.backends.cuda.matmul, name, False)

    def close(self) -> None:
        global _open
        if not self._held:
            return
        self._held, _open = False, _open - 1
        if not _open:
            for name, value in _before.items():
                setattr(torch.backends.cuda.matmul, name, value)
