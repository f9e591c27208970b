"""Python interface of the C++ in this folder; structures must match those of the C++ field by field."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from specbench.common import EnvironmentRefused
from specbench.engine.attention.interface import Visibility
from specbench.engine.cpu.source import CPU_SOURCE
from specbench.engine.layers.parts import Unlike
from specbench.engine.layout import Layout

#: Numbers of dtypes and activations in the C++.
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
BLOCKS = {8: 3, 4: 4}  # weights in blocks, by bits
NUMBERS = {number: dtype for dtype, number in TYPES.items()}
ACTIVATIONS = {"silu": 0, "swish": 0, "gelu_pytorch_tanh": 1}
LARGEST_HEAD = 512

_pointer, _long, _int, _float = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float


class Norm(ctypes.Structure):
    """An RMSNorm; a weight of None means no norm."""

    _fields_ = [("weight", _pointer), ("eps", _float)]


class Linear(ctypes.Structure):
    """A linear layer."""

    _fields_ = [
        ("weight", _pointer), ("bias", _pointer), ("scale", _pointer), ("least", _pointer), ("out", _long),
        ("in_", _long), ("type", _int), ("shift", _int), ("wide", _int),
    ]  # fmt: skip


class Heads(ctypes.Structure):
    """Sizes of a layer's attention."""

    _fields_ = [
        ("heads", _long), ("kv_heads", _long), ("size", _long), ("value_size", _long), ("window", _long),
        ("scale", _float),
    ]  # fmt: skip


class Layer(ctypes.Structure):
    """A decoder layer."""

    _fields_ = [
        ("before_attention", Norm), ("of_query", Norm), ("of_key", Norm),
        ("after_attention", Norm), ("before_mlp", Norm), ("after_mlp", Norm),
        ("inputs", Linear * 3), ("output", Linear), ("gate", Linear), ("up", Linear), ("down", Linear),
        ("heads", Heads), ("hidden", _long), ("inner", _long),
        ("activation", _int), ("type", _int), ("keys", _pointer), ("values", _pointer),
    ]  # fmt: skip


class Sight(ctypes.Structure):
    """Which rows see which in a forward."""

    _fields_ = [
        ("rows", _long), ("slots", _long), ("capacity", _long), ("before", _long), ("offset", _long),
        ("slot", _pointer), ("first", _pointer), ("count", _pointer), ("length", _pointer), ("start", _pointer),
        ("depth", _pointer), ("reach", _pointer), ("run", _pointer), ("more", _pointer), ("rest", _pointer),
    ]  # fmt: skip


def address(tensor: Tensor, dtype: torch.dtype, count: int) -> int:
    """Return a tensor's address for the C++; all pointers that it gets come from here.

    Raises Unlike unless the tensor is contiguous and on the CPU, with this dtype and ``count`` values.
    """
    # In this order and without further calls, because each step calls this a dozen times while it is timed.
    if tensor.dtype is dtype and tensor.numel() == count and tensor.is_cpu and tensor.is_contiguous():
        return tensor.data_ptr()
    raise Unlike(
        f"our own layers need a contiguous CPU tensor of {count:,} values in {dtype}, not {[*tensor.shape]} in "
        f"{tensor.dtype} on {tensor.device}"
    )


_failed: list[str] = []  # why the library cannot be built, so that a process tries only once


@cache
def _loaded() -> Any:
    library = CPU_SOURCE.load()
    library.work_new.restype = _pointer
    library.work_free.argtypes = [_pointer]
    library.work_free.restype = None
    library.work_halve.argtypes = [_pointer, _pointer, _long]
    library.work_halve.restype = _pointer
    library.work_aim.argtypes = [_pointer, _pointer]
    library.layers_run.argtypes = [_pointer, _pointer, _long, _pointer, _pointer, _pointer, _pointer, _long, _int]
    library.attention_run.argtypes = [*[_pointer] * 6, _long, _int]
    library.mlp_run.argtypes = [*[_pointer] * 4, _long, _int]
    library.norm_run.argtypes = [*[_pointer] * 4, _int, _pointer, _pointer, _long, _long]
    library.best_run.argtypes = [_pointer, _long, _long, _long, _pointer, _pointer, _int]
    library.linear_run.argtypes = [_pointer, _pointer, _pointer, _int, _pointer, _long, _int]
    return library


def open_cpu_library(say: Callable[[str], None] = lambda line: None) -> Any:
    """Return the library; build it first if needed, after a line to ``say``."""
    if _failed:
        raise EnvironmentRefused(_failed[0])
    try:
        if not _loaded.cache_info().currsize and not CPU_SOURCE.built:
            CPU_SOURCE.load(say)
        return _loaded()
    except EnvironmentRefused as error:
        _failed.append(str(error))
        raise


class Work:
    """Buffers of a forward, and the calls into the library that use them."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._at = library.work_new()
        if not self._at:
            raise MemoryError
        self._kept: tuple[Tensor, ...] = ()
        self._sight = Sight()

    def halve(self, weight: Tensor) -> int | None:
        """Return the address of a bfloat16 copy of float32 weights, or None if it would not be exact."""
        found: int | None = self._library.work_halve(
            self._at, address(weight, torch.float32, weight.numel()), weight.numel()
        )
        return found

    def aim(
        self, see: Visibility, layout: Layout, capacity: int, *, start: Tensor | None = None, offset: int = 0
    ) -> None:
        """Set which rows see which in the next layers.

        Args:
            see: what the rows see. It may have further rows before each slot's, whose keys and values are stored.
            layout: of the rows.
            capacity: of the cache.
            start: int32 [S], cell in which each slot's first row is stored; None: the one after its cached tokens.
            offset: slot of the cache that is the layout's first one.
        """
        depth, whole, slots = see.depth.int(), torch.int32, len(layout.first)
        rows, every = len(layout.slot), len(see.depth)
        before = (every - rows) // slots
        if before:
            depth = depth.view(slots, -1)[:, before:].flatten().contiguous()
        start = see.lengths if start is None else start
        slot, first, count, length, start, depth, reach = self._kept = (
            layout.slot, layout.first, layout.count, see.lengths, start, depth, see.rows.contiguous(),
        )  # fmt: skip
        self._sight = Sight(
            rows, slots, capacity, before, offset, address(slot, whole, rows), address(first, whole, slots),
            address(count, whole, slots), address(length, whole, slots), address(start, whole, slots),
            address(depth, whole, rows), address(reach, torch.bool, every * every),
        )  # fmt: skip
        _check(self._library.work_aim(self._at, ctypes.byref(self._sight)))

    def layers(
        self, layers: ctypes.Array[Layer], hidden: Tensor, outputs: Sequence[Tensor | None], rotary: Sequence[Tensor]
    ) -> None:
        """Run some layers one after the other.

        ``hidden``: [1, N, hidden size]; ``outputs``: memory for each layer's output, or None; ``rotary``: cosine and
        sine [1, N, rotated size].
        """
        dtype, size = NUMBERS[layers[0].type], self._sight.rows * layers[0].hidden
        outs = (_pointer * len(layers))(
            *(None if output is None else address(output, dtype, size) for output in outputs)
        )
        cosine, sine = rotary
        turned = cosine.shape[-1]
        count = self._sight.rows * turned
        _check(
            self._library.layers_run(
                self._at, layers, len(layers), address(hidden, dtype, size), outs, address(cosine, dtype, count),
                address(sine, dtype, count), turned, torch.get_num_threads(),
            )
        )  # fmt: skip

    def attention(self, layer: Layer, x: Tensor, rotary: Sequence[Tensor], *, stores_only: bool = False) -> Tensor:
        """Run rows ``x`` [N, width] through a layer's attention: [N, hidden size]; store their keys and values.

        ``rotary``: cosine and sine [1, N, rotated size]; ``stores_only``: do no more than that.
        """
        dtype, rows, (cosine, sine) = NUMBERS[layer.type], self._sight.rows, rotary
        x, cosine, sine = x.contiguous(), cosine.contiguous(), sine.contiguous()
        out = x.new_empty(0 if stores_only else rows, layer.hidden)
        turned = cosine.shape[-1]
        _check(
            self._library.attention_run(
                self._at, ctypes.byref(layer), address(x, dtype, rows * layer.inputs[0].in_),
                None if stores_only else address(out, dtype, rows * layer.hidden),
                address(cosine, dtype, rows * turned), address(sine, dtype, rows * turned), turned,
                torch.get_num_threads(),
            )
        )  # fmt: skip
        return out

    def mlp(self, layer: Layer, x: Tensor) -> Tensor:
        """Run rows ``x`` [N, hidden size] through a layer's gated MLP."""
        x, dtype = x.contiguous(), NUMBERS[layer.type]
        out, size = torch.empty_like(x), len(x) * layer.hidden
        _check(
            self._library.mlp_run(
                self._at, ctypes.byref(layer), address(x, dtype, size), address(out, dtype, size), len(x),
                torch.get_num_threads(),
            )
        )  # fmt: skip
        return out

    def norm(self, norm: Norm, x: Tensor, added: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(norm of the sum, the sum) of ``x`` [..., size] and ``added``, row by row.

        The result of a row does not depend on the number of rows.
        """
        x = x.contiguous()
        dtype, count, size = x.dtype, x.numel(), x.shape[-1]
        added = None if added is None else added.contiguous()
        out, total = torch.empty_like(x), x if added is None else torch.empty_like(x)
        _check(
            self._library.norm_run(
                self._at, ctypes.byref(norm), address(x, dtype, count),
                None if added is None else address(added, dtype, count), TYPES[dtype], address(total, dtype, count),
                address(out, dtype, count), count // size, size,
            )
        )  # fmt: skip
        return out, total

    def best(self, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities and ids [..., count] of the most probable tokens of float32 ``scores`` [..., V]."""
        scores = scores.contiguous()
        size, shape = scores.shape[-1], (*scores.shape[:-1], count)
        logp, ids = scores.new_empty(shape), torch.empty(shape, dtype=torch.int64, device=scores.device)
        rows = logp.numel() // count
        _check(
            self._library.best_run(
                address(scores, torch.float32, rows * size), rows, size, count,
                address(logp, torch.float32, rows * count), address(ids, torch.int64, rows * count),
                torch.get_num_threads(),
            )
        )  # fmt: skip
        return logp, ids

    def linear(self, linear: Linear, x: Tensor) -> Tensor:
        """Run ``x`` [..., in] in float32 or bfloat16 through a linear layer: float32 [..., out]."""
        x = x.contiguous()
        rows = x.shape[:-1].numel()
        out = x.new_empty(*x.shape[:-1], linear.out, dtype=torch.float32)
        _check(
            self._library.linear_run(
                self._at, ctypes.byref(linear), address(x, x.dtype, rows * linear.in_), TYPES[x.dtype],
                address(out, torch.float32, rows * linear.out), rows, torch.get_num_threads(),
            )
        )  # fmt: skip
        return out

    def __del__(self) -> None:
        self._library.work_free(self._at)


def _check(failed: int) -> None:
    if failed:
        raise EnvironmentRefused("no memory for the rows of this step; lower --concurrency, or use smaller trees")
