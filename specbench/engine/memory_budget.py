"""Memory budget: the bytes that steps of so many rows take, and whether so many are free.

No number of rows is too many by itself: what a step may hold follows from the cache cells that its rows are written to,
the masks of rows by rows, what a layer puts out for each row, and the logits of a chunk. It is what there is at most at
a time, on the path that takes most: kernels that mask by bits take less.
"""

from __future__ import annotations

from dataclasses import dataclass

from specbench.common import EnvironmentRefused
from specbench.engine.buckets import ROW_BUCKETS, scratch_cells
from specbench.hardware import ModelShape

_GIB = 2**30
_SCORES = 4  # bytes of a logit while a token is chosen
#: Bytes for two rows while ancestors are found, counted and put in a mask, of which torch makes whole numbers.
_PAIR = 14


class TreesTooLarge(EnvironmentRefused):
    """There is memory for the model and its cache, and none for steps of so many rows."""


@dataclass(frozen=True)
class Widths:
    """What of a model decides the memory of a step.

    Attributes:
        hidden: elements of a row between layers.
        inner: elements of a row inside of one, at the widest: queries, keys and values, or the products of an MLP.
        vocabulary: logits of a row.
        token_bytes: of one token in the cache.
        value_bytes: of an element of all these.
    """

    hidden: int
    inner: int
    vocabulary: int
    token_bytes: float
    value_bytes: float

    @classmethod
    def of(cls, shape: ModelShape) -> Widths:
        """Those of a shape; its MLP is taken for a gated one."""
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
    """Bytes that a model decodes in; ``step``: what exists while a step runs: masks, activations, logits."""

    cache: float
    step: float

    @property
    def total(self) -> float:
        """Both."""
        return self.cache + self.step


def step_memory(widths: Widths | None, rows: int, capacity: int, slots: int = 1, *, dense: bool = True) -> StepMemory:
    """What steps of trees of up to ``rows`` rows take beside the weights.

    ``widths``: None counts only the masks; ``dense``: attention takes masks of rows by cells, as torch's does, and not
    bits, as our kernels for CUDA do.
    """
    every, cells = rows * slots, capacity + scratch_cells(rows)
    value = widths.value_bytes if widths else 2.0
    # Our kernels take a bit for two rows of a slot, and of larger trees the path is found on matrices all the same.
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
    """Raise TreesTooLarge where steps of such trees find no memory and steps of a single row do.

    ``free``: bytes, None where that is not known.
    """
    wanted = step_memory(widths, rows, capacity, slots, dense=dense)
    if free is None or wanted.total <= free or step_memory(widths, 1, capacity, slots, dense=dense).total > free:
        return
    together = f"{slots} trees of {rows:,} rows" if slots > 1 else f"a tree of {rows:,} rows"
    raise TreesTooLarge(
        f"no memory for {together}: a step takes {wanted.step / _GIB:.3g} GiB for masks, activations and logits beside "
        f"{wanted.cache / _GIB:.3g} GiB of KV cache, and {max(free, 0) / _GIB:.3g} GiB are free"
    )
