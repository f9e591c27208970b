"""Counts the variants of kernels that launches would compile, by triton's own rules and without a GPU.

A launch is compiled anew where its key differs: the types of its arguments, whether a number is 1 or a multiple of 16,
whether a pointer is a multiple of 16 bytes, compile-time arguments and options. Triton's binder makes that key; here it
binds what :func:`specbench.engine.nodes.launches` notes, on tensors without memory, for an H200.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class _Pointer:
    """What a binder reads of a tensor; CUDA's allocator aligns what a tensor begins at, a view may be further on."""

    dtype: Any
    at: int

    def data_ptr(self) -> int:
        return self.at


class Variants:
    """The distinct launches, by kernel; :meth:`note` is for :func:`specbench.engine.nodes.launches`."""

    def __init__(self) -> None:
        self.keys: dict[str, set[str]] = defaultdict(set)
        self.unsaid: set[str] = set()  # kernels whose launches leave fused multiply-add to triton's default

    def note(self, kernel: Any, args: Sequence[Any], named: dict[str, Any]) -> None:
        """Binds a launch's arguments."""
        _, found, options = _binder(kernel)(
            *[_pointer(each) for each in args], **{name: _pointer(each) for name, each in named.items()}
        )
        self.keys[kernel.__name__].add(f"{found} {sorted(options.items())}")
        if "enable_fp_fusion" not in options:
            self.unsaid.add(kernel.__name__)

    def counts(self) -> dict[str, int]:
        """Variants of each kernel."""
        return {name: len(keys) for name, keys in self.keys.items()}

    def total(self) -> int:
        """Variants of all kernels."""
        return sum(self.counts().values())


def _pointer(argument: Any) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    return _Pointer(argument.dtype, int(argument.storage_offset()) * argument.element_size())


@cache
def _binder(kernel: Any) -> Any:
    """Of a kernel that is compiled or interpreted."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import JITFunction, create_function_from_signature

    if not isinstance(kernel, JITFunction):  # the interpreter's, which keeps what it was made with
        marks = {name: kernel.kwargs.get(name) for name in ("do_not_specialize", "do_not_specialize_on_alignment")}
        kernel = JITFunction(kernel.fn, **marks)
    return create_function_from_signature(kernel.signature, kernel.params, make_backend(GPUTarget("cuda", 90, 32)))
