"""FlashAttention kernels (Dao, 2023; Shah et al., 2024) over the engine's cache, for chains only.

Three packages may be installed, each with its own interface. If several of them run, measured time decides.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.engine.attention.interface import LayerAttention, Visibility
from specbench.engine.fast_paths import fault


class Version(NamedTuple):
    """A FlashAttention package and how to call it.

    ``call``: (function, query [sequences, rows, heads, size], keys [S, L, KV heads, size], values, cells of each
    sequence including its own rows, slot of each sequence, scale, window) -> attended, of the query's shape.
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
    """Call with a page table in which each slot of the cache is one page; a cache with one slot needs no table."""
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
    attended: Tensor = found[0] if isinstance(found, tuple) else found  # may come with log-sum-exp values
    return attended


#: By name of the backend; in a tie the earlier one wins.
VERSIONS = {
    "flash": Version("flash-attn", "flash_attn", "flash_attn_with_kvcache", _by_index),
    "flash3": Version("flash-attn 3", "flash_attn_interface", "flash_attn_with_kvcache", _by_index),
    "flash4": Version("flash-attn 4", "flash_attn.cute", "flash_attn_varlen_func", _by_page),
}


def load(name: str) -> Any:
    """Import a version's function; a package that was built for another torch may raise any error."""
    version = VERSIONS[name]
    return getattr(importlib.import_module(version.module), version.function)


def installed(name: str) -> bool:
    """Whether a version's package is installed; importing it may still fail."""
    try:
        return importlib.util.find_spec(VERSIONS[name].module) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False
    except Exception:  # importing the parent package failed
        return True


@cache
def flash_fault(name: str, device: torch.device, dtype: torch.dtype) -> str:
    """Import and launch an installed version; return why it cannot be used, or an empty string."""

    def launch() -> None:
        query, stored = (torch.zeros(shape, dtype=dtype, device=device) for shape in ((1, 1, 2, 64), (1, 1, 64, 64)))
        keys = stored.transpose(1, 2)
        cells, slots = (torch.full((1,), at, dtype=torch.int32, device=device) for at in (2, 0))
        VERSIONS[name].call(load(name), query, keys, keys, cells, slots, None, None)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return fault(launch)


class FlashAttention:
    """Causal attention of one sequence's chain, or of one row per sequence; the output of padding is arbitrary."""

    def __init__(self, visibility: Visibility, *, one_row_each: bool, name: str = "flash") -> None:
        self._call, self._function = VERSIONS[name].call, load(name)
        layout = visibility.layout
        slots = layout.owner if one_row_each else layout.owner[:1]
        # The length includes the step's own rows, so row i is aligned with cell (length + i), as the step requires.
        rows = 1 if one_row_each else len(layout.slot)
        self._cells = (visibility.lengths.long()[slots] + rows).int()
        self._slots = slots.int()

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention) -> Tensor:
        _, heads, rows, size = query.shape
        sequences = len(self._slots)
        attended = self._call(
            self._function,
            query.transpose(1, 2).reshape(sequences, rows // sequences, heads, size),
            key.transpose(1, 2),
            value.transpose(1, 2),
            self._cells,
            self._slots,
            how.scale,
            how.sight.window,
        )
        return attended.reshape(1, rows, heads, -1)
