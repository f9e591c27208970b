"""CUDA graphs without a GPU: torch operations are recorded once and replayed on the same memory.

What a CUDA graph fixes is fixed here too: which operations run, on which tensors, with which Python numbers. What it
forbids is refused: reading a tensor on the host, and shapes that depend on data. So a step that replays rightly here
depends on nothing but the contents of its input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from specbench.engine.graphs import CaptureFailed

aten = torch.ops.aten
_HOST_READS = (aten._local_scalar_dense.default, aten.nonzero.default, aten.is_nonzero.default)


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _HOST_READS:
            raise CaptureFailed(f"{func} reads the device; use --graphs off")
        out = func(*args, **(kwargs or {}))
        self.log.append((func, args, kwargs or {}, out))
        return out


def recorded_capture(device: torch.device) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """In place of :func:`specbench.engine.graphs.cuda_capture`."""

    def capture(work: Callable[[], None]) -> Callable[[], None]:
        recorder = _Recorder()
        with recorder:
            work()
        return lambda: _replay(recorder.log)

    return capture


@torch.inference_mode()
def _replay(log: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]]) -> None:
    for func, args, kwargs, out in log:
        again = func(*args, **kwargs)
        for old, new in zip(tree_flatten(out)[0], tree_flatten(again)[0], strict=True):
            # The same memory: a view, or work done in place. Whether an operation copies may depend on its arguments.
            if isinstance(old, torch.Tensor) and old.untyped_storage()._cdata != new.untyped_storage()._cdata:
                old.copy_(new)
