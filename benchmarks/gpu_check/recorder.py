"""Emulate CUDA graphs without a GPU: torch operations are recorded once and replayed on the same memory.

As in a CUDA graph, the operations, their tensors and their Python numbers are fixed. What a CUDA graph forbids is
refused: when recording, host reads of a tensor and shapes that depend on data; when replaying, results with another
shape or in other memory. A step that replays correctly here therefore depends only on the contents of its input. A
kernel in Triton's interpreter counts as one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten

from specbench.engine import graphs
from specbench.engine.graphs import CaptureFailed

aten = torch.ops.aten
# In inference mode some operations arrive before torch decomposes them.
_HOST_READS = (aten._local_scalar_dense, aten.item, aten.is_nonzero, aten.equal, aten.allclose)
_SHAPED_BY_DATA = (
    aten.nonzero, aten.nonzero_numpy, aten.argwhere, aten.masked_select, aten.unique_dim, aten._unique2,
    aten.unique_consecutive, aten.bincount,
)  # fmt: skip


class ReplayDiffers(RuntimeError):
    """A replayed operation gave another shape, or allocated differently, than when it was recorded."""


class _Did(NamedTuple):
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    read: frozenset[int]  # storages of its inputs
    out: list[Any]


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[_Did] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        if packet in _HOST_READS:
            raise CaptureFailed(f"{func} reads the device; use --graphs off")
        if packet in _SHAPED_BY_DATA or _chosen_by_mask(packet, args) or _repeated_by_data(func, kwargs):
            raise CaptureFailed(f"{func} reads the device, because its shape depends on data; use --graphs off")
        read = frozenset(_memory(x) for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor))
        out = func(*args, **kwargs)
        self.log.append(_Did(func, args, kwargs, read, tree_flatten(out)[0]))
        return out


def recorded_capture(device: torch.device) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Replacement for :func:`specbench.engine.graphs.cuda_capture`."""

    def capture(work: Callable[[], None]) -> Callable[[], None]:
        recorder = _Recorder()
        with _kernels(recorder.log), recorder:
            work()
        return lambda: _replay(recorder.log)

    return capture


@contextmanager
def installed() -> Iterator[None]:
    """Context in which new engines record their steps instead of capturing them."""
    before = graphs.cuda_capture
    graphs.cuda_capture = recorded_capture
    try:
        yield
    finally:
        graphs.cuda_capture = before


@contextmanager
def _kernels(log: list[_Did]) -> Iterator[None]:
    """Context in which a launch in Triton's interpreter is logged as one operation."""
    try:
        from triton.runtime.interpreter import GridExecutor
    except ImportError:  # triton is not everywhere
        yield
        return
    launch = GridExecutor.__call__

    def recorded(grid: Any, *args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            out = launch(grid, *args, **kwargs)
        log.append(_Did(partial(launch, grid), args, kwargs, frozenset(), tree_flatten(out)[0]))
        return out

    GridExecutor.__call__ = recorded
    try:
        yield
    finally:
        GridExecutor.__call__ = launch


def _chosen_by_mask(packet: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operation indexes by a mask, so that its shape depends on data."""
    if packet not in (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_):
        return False
    masks = (torch.bool, torch.uint8)
    return any(isinstance(index, Tensor) and index.dtype in masks for index in args[1])


def _repeated_by_data(func: Any, kwargs: dict[str, Any]) -> bool:
    tensor = func in (aten.repeat_interleave.Tensor, aten.repeat_interleave.self_Tensor)
    return tensor and kwargs.get("output_size") is None


@torch.inference_mode()
def _replay(log: list[_Did]) -> None:
    for did in log:
        again = did.func(*did.args, **did.kwargs)
        for old, new in zip(did.out, tree_flatten(again)[0], strict=True):
            if not isinstance(old, Tensor):
                if old != new:
                    raise ReplayDiffers(f"{did.func} returned {new} to the host, and {old} when recorded")
                continue
            if (old.shape, old.stride(), old.dtype) != (new.shape, new.stride(), new.dtype):
                raise ReplayDiffers(f"{did.func} returned {_layout(new)}, and {_layout(old)} when recorded")
            before, after = _memory(old), _memory(new)
            if before == after:  # a view, or an in-place operation
                continue
            if before in did.read or after in did.read:
                raise ReplayDiffers(f"{did.func} allocates memory only when recorded or only when replayed")
            old.copy_(new)


def _memory(tensor: Tensor) -> int:
    """Identify a tensor's memory; a tensor in a library's own format, such as packed weights, is never written."""
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided and not tensor.is_mkldnn else id(tensor)


def _layout(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)} with strides {tensor.stride()}"
