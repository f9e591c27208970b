"""Check that a model's weights fit, and place those on a CPU in huge pages."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from specbench.common import EnvironmentRefused
from specbench.hardware import free_ram_bytes, ram_bytes

_PAGE = 2 << 20  # a huge page of x86 and of Arm with small pages of 4 KiB
_BLOCK = 256 << 20  # moved at a time, so that little memory is needed twice
_LINE = 64  # each tensor begins a cache line


def check_memory(nbytes: int, device: torch.device, shown: str) -> None:
    """Refuse weights larger than the device's free memory; on a CPU the kernel would kill the process later."""
    if device.type == "cuda":
        room, _ = torch.cuda.mem_get_info(device)
    else:
        free = free_ram_bytes()
        room = ram_bytes() if free is None else free
    if nbytes > room:
        raise EnvironmentRefused(
            f"cannot load {shown}: its weights need {nbytes / 2**30:.3g} GiB and {device.type} has "
            f"{room / 2**30:.3g} GiB of free memory; choose a smaller model or dtype"
        )


def use_huge_pages(tensors: Iterable[Tensor]) -> None:
    """Move tensors of a CPU, in this order, to blocks of memory with huge pages.

    Cores fetch memory ahead only within a page, so weights in huge pages are read faster. Tensors that share memory
    still do afterwards. Where the system has no huge pages, or no memory for a copy, tensors stay where they are.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    wanted = [t for t in tensors if type(t.data) is Tensor and t.is_cpu and t.is_contiguous() and t.numel()]
    alike: dict[tuple[int, int, torch.dtype], list[Tensor]] = {}
    for tensor in wanted:
        alike.setdefault((tensor.data_ptr(), tensor.nbytes, tensor.dtype), []).append(tensor)
    block: list[list[Tensor]] = []
    for same in alike.values():
        block.append(same)
        if sum(_whole_lines(each[0]) for each in block) >= _BLOCK:
            _move(block)
            block = []
    if sum(_whole_lines(each[0]) for each in block) >= _PAGE:
        _move(block)


def _move(block: Sequence[Sequence[Tensor]]) -> None:
    """Move tensors, those that share memory in a list of their own, to one block."""
    size = sum(_whole_lines(same[0]) for same in block) + _PAGE
    free = free_ram_bytes()
    if free is not None and free < size:
        return
    try:
        held = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        held.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return
    memory = torch.frombuffer(held, dtype=torch.uint8)
    at = -memory.data_ptr() % _PAGE
    for same in block:
        place = memory[at : at + same[0].nbytes].view(same[0].dtype)
        place.copy_(same[0].flatten())
        for tensor in same:
            tensor.data = place.view(tensor.shape)
        at += _whole_lines(same[0])
    with suppress(OSError, AttributeError):  # glibc keeps what the tensors were in
        ctypes.CDLL(None).malloc_trim(0)


def _whole_lines(tensor: Tensor) -> int:
    return -(-tensor.nbytes // _LINE) * _LINE
