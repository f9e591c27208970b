"""Make cuBLAS add up half-precision products entirely in float32 while an engine is open.

By default torch lets cuBLAS split a sum and round the parts to half precision. That is more rounding noise than
necessary, and the split depends on the number of rows, so two steps could choose different tokens more often.
"""

from __future__ import annotations

import torch

_FLAGS = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")
_before: dict[str, bool] = {}
_open = 0


class WideSums:
    """Change torch's settings for this process until :meth:`close`; the last open instance restores them."""

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
