"""FlashAttention's kernels (Dao, 2023; Shah et al., 2024) over the engine's cache: a causal order, and no tree.

Three packages may be installed, each with an interface of its own. Where several run, measured time decides.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.engine.attention.interface import Visibility
from specbench.engine.fast_paths import fault


class Version(NamedTuple):
    """A package and how it is called. ``call``: (function, query [sequences, rows, heads, size], keys [S, L, KV heads,
    size], values, cells of each sequence
        with its own rows, slot of each sequence, scale, window) -> attended, of the query's shape.
    """

    title: str
    module: str
    function: str
    call: Callable[[Any, Tensor, Tensor, Tensor, Tensor, Tensor, float | None, int | None], Tensor]


def _by_index(
    function: Any, query: Tensor, keys: Tensor, values: Tensor, cells: Tensor, slots: Tensor,
    scale: float | None, window: int | None,
) -> Tensor:  # fmt: skip
    attended: Tensor = function(
        query,
        keys,
        values,
        cache_seqlens=cells,
        cache_batch_idx=slots,
        softmax_scale=scale,
        causal=True,
        window_size=(-1, -1) if window is None else (window - 1, 0),
    )
    return attended


def _by_page(
    function: Any, query: Tensor, keys: Tensor, values: Tensor, cells: Tensor, slots: Tensor,
    scale: float | None, window: int | None,
) -> Tensor:  # fmt: skip
    """By a table of pages, of which each slot's part of the cache is one; a cache of one slot needs none."""
    found = function(
        query,
        keys,
        values,
        seqused_k=cells,
        page_table=None if len(keys) == len(slots) == 1 else slots[:, None].contiguous(),
        softmax_scale=scale,
        causal=True,
        window_size=(None, None) if window is None else (window - 1, 0),
    )
    attended: Tensor = found[0] if isinstance(found, tuple) else found  # with the logarithms of its sums, or without
    return attended


#: By the backend's name, in the order in which a tie is decided.
VERSIONS = {
    "flash": Version("flash-attn", "flash_attn", "flash_attn_with_kvcache", _by_index),
    "flash3": Version("flash-attn 3", "flash_attn_interface", "flash_attn_with_kvcache", _by_index),
    "flash4": Version("flash-attn 4", "flash_attn.cute", "flash_attn_varlen_func", _by_page),
}


def load(name: str) -> Any:
    """The function of a version; raises whatever importing a package raises that was built for another torch."""
    version = VERSIONS[name]
    return getattr(importlib.import_module(version.module), version.function)


def installed(name: str) -> bool:
    """Whether a version's package is there; it may be one that cannot be imported."""
    try:
        return importlib.util.find_spec(VERSIONS[name].module) is not None
    except ModuleNotFoundError:  # a package that it would be part of
        return False
    except Exception:  # of such a package's own import
        return True


@cache
def flash_fault(name: str, device: torch.device, dtype: torch.dtype) -> str:
    """Why an installed version cannot be used, by importing it and by one launch; empty where it can."""

    def launch() -> None:
        query, stored = (torch.zeros(shape, dtype=dtype, device=device) for shape in ((1, 1, 2, 64), (1, 1, 64, 64)))
        keys = stored.transpose(1, 2)
        cells, slots = (torch.full((1,), at, dtype=torch.int32, device=device) for at in (2, 0))
        VERSIONS[name].call(load(name), query, keys, keys, cells, slots, None, None)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return fault(launch)


class FlashAttention:
    """Causal attention of one sequence's chain, or of one row of each sequence; padding after it sees anything."""

    def __init__(self, visibility: Visibility, *, one_row_each: bool, name: str = "flash") -> None:
        self._call, self._function = VERSIONS[name].call, load(name)
        layout = visibility.layout
        slots = layout.owner if one_row_each else layout.owner[:1]
        # With the step's own rows counted in, row i is aligned with cell (length + i): its mask is ours.
        rows = 1 if one_row_each else len(layout.slot)
        self._cells = (visibility.lengths.long()[slots] + rows).int()
        self._slots = slots.int()

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
        _, heads, rows, size = query.shape
        sequences = len(self._slots)
        attended = self._call(
            self._function,
            query.transpose(1, 2).reshape(sequences, rows // sequences, heads, size),
            key.transpose(1, 2),
            value.transpose(1, 2),
            self._cells,
            self._slots,
            scale,
            window,
        )
        return attended.reshape(1, rows, heads, -1)
