"""Estimate the memory of steps with a given number of rows, and check that it is free.

The number of rows has no fixed limit. A step needs memory for the cache cells that its rows are written to, the masks
(rows × rows), a layer's output for each row, and the logits of one chunk. The estimate is the peak, for the code that
needs most; kernels whose masks are bits need less.
"""

from __future__ import annotations

from dataclasses import dataclass

from specbench.common import EnvironmentRefused
from specbench.engine.buckets import ROW_BUCKETS, scratch_cells
from specbench.hardware import ModelShape

_GIB = 2**30
_SCORES = 4  # bytes of a logit while a token is chosen
#: Bytes per pair of rows while torch finds ancestors, counts them and makes a mask, with integer intermediates.
_PAIR = 14


class TreesTooLarge(EnvironmentRefused):
    """Memory is enough for the model and its cache, but not for steps of this many rows."""


@dataclass(frozen=True)
class Widths:
    """Widths of a model that decide the memory of a step.

    Attributes:
        hidden: elements of a row between layers.
        inner: most elements of a row inside a layer: queries, keys and values, or the products of an MLP.
        vocabulary: logits of a row.
        token_bytes: bytes of one token in the cache.
        value_bytes: bytes of one element.
    """

    hidden: int
    inner: int
    vocabulary: int
    token_bytes: float
    value_bytes: float

    @classmethod
    def of(cls, shape: ModelShape) -> Widths:
        """Widths of a model with this shape, assuming a gated MLP."""
        hidden, layers = shape.embedding_width, sum(some.layers for some in shape.attention)
        most, products = 0, 0
        for some in shape.attention:
            both = some.key_size + some.value_size
            attended = some.query_heads * some.key_size + some.kv_heads * both
            products += some.layers * hidden * (attended + some.query_heads * some.value_size)
            most = max(most, attended)
        mlp = (shape.matmul - products) // (3 * hidden * layers)
        return cls(hidden, max(most, 3 * mlp), shape.head // hidden, shape.token_bytes, shape.cache_bytes)


@dataclass(frozen=True)
class StepMemory:
    """Bytes for decoding; ``step``: masks, activations and logits, which exist while a step runs."""

    cache: float
    step: float

    @property
    def total(self) -> float:
        """Bytes of the cache and of a step."""
        return self.cache + self.step


def step_memory(widths: Widths | None, rows: int, capacity: int, slots: int = 1, *, dense: bool = True) -> StepMemory:
    """Memory of steps of trees of up to ``rows`` rows, without the weights.

    ``widths``: None counts only the masks; ``dense``: whether attention uses masks of rows × cells, as torch does,
    rather than bits, as our CUDA kernels do.
    """
    every, cells = rows * slots, capacity + scratch_cells(rows)
    value = widths.value_bytes if widths else 2.0
    # Our kernels use one bit per pair of a slot's rows, but the path of a larger tree is still found with matrices.
    pairs = _PAIR * every * every if dense or rows > ROW_BUCKETS[-1] else every * rows / 4
    masks = pairs + (every * cells * (1 + value) if dense else 0)
    if widths is None:
        return StepMemory(0.0, masks)
    activations = every * value * (4 * widths.hidden + widths.inner)
    logits = min(every, ROW_BUCKETS[-1]) * widths.vocabulary * (value + 2 * _SCORES)
    return StepMemory(slots * cells * widths.token_bytes, masks + activations + logits)


def assert_trees_fit(
    widths: Widths | None, rows: int, capacity: int, slots: int, free: float | None, *, dense: bool = True
) -> None:
    """Raise TreesTooLarge if steps of such trees do not fit in memory but steps of a single row do.

    ``free``: free bytes; None if unknown.
    """
    wanted = step_memory(widths, rows, capacity, slots, dense=dense)
    if free is None or wanted.total <= free or step_memory(widths, 1, capacity, slots, dense=dense).total > free:
        return
    together = f"{slots} trees of {rows:,} rows" if slots > 1 else f"a tree of {rows:,} rows"
    raise TreesTooLarge(
        f"no memory for {together}: a step takes {wanted.step / _GIB:.3g} GiB for masks, activations and logits, the "
        f"KV cache {wanted.cache / _GIB:.3g} GiB, and {max(free, 0) / _GIB:.3g} GiB are free"
    )
