"""What a step has to compute and to move at least, and what a device makes of it.

A step of S slots and Q rows is one target forward over S·Q rows, each slot behind ``context`` cached tokens. Its cost
counts every byte once that no implementation can leave in place: weights, KV cache, embedding rows; and two FLOPs per
multiplied weight or score. Activations, logits and elementwise work are left out: a step that fuses well keeps them in
caches, so the bound is a lower one. Attention counts all Q new rows for each row, as kernels that mask do, although a
tree's row sees its ancestors only.

The roofline model: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from specbench.results import Record

#: Beyond so many rows no step is asked about; a knee further out counts as none.
_MOST_ROWS = 1 << 16

# Ascending positions, and a value at each.
_Line = tuple[Sequence[float], Sequence[float]]


class Experts(Record):
    """The experts of a mixture model, those of all layers taken together."""

    count: int = Field(gt=0, description="experts of a layer")
    active: int = Field(gt=0, description="of these, how many a row goes through")
    elements: int = Field(gt=0, description="weights of one expert, summed over the layers that have them")

    def distinct(self, rows: float) -> float:
        """Expected number of experts of a layer that ``rows`` rows read, under uniform and independent routing.

        Routing of real text is uneven, so this is the most to be expected and not the least.
        """
        return self.count * (1.0 - (1.0 - self.active / self.count) ** rows)


class AttentionLayers(Record):
    """Layers of one attention shape. Fewer KV heads than query heads is grouped-query attention."""

    layers: int = Field(gt=0)
    query_heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    key_size: int = Field(gt=0, description="elements of a head's key")
    value_size: int = Field(gt=0, description="elements of a head's value")
    window: int | None = Field(default=None, description="a row sees keys less than so many positions before it")

    def cached(self, context: int) -> int:
        """Cached tokens that a step behind ``context`` of them has to read."""
        return context if self.window is None else min(context, self.window - 1)


class ModelShape(Record):
    """What of a model decides the cost of its step. Counts are of elements."""

    matmul: int = Field(ge=0, description="weights that every row is multiplied with, LM head and experts apart")
    head: int = Field(ge=0, description="weights of the LM head")
    embedding: int = Field(ge=0, description="embedding tables, without one that is the LM head's own")
    embedding_width: int = Field(ge=0, description="elements of these tables, tied ones too, that one row reads")
    tied: bool = Field(description="whether the LM head is the embedding table")
    small: int = Field(ge=0, description="norms, biases: read by every step, no FLOPs to speak of")
    experts: Experts | None = None
    attention: tuple[AttentionLayers, ...]
    weight_bytes: float = Field(gt=0, description="bytes per weight")
    cache_bytes: float = Field(gt=0, description="bytes per cached element")

    @property
    def parameters(self) -> int:
        """Weights of the model, tied ones once."""
        experts = self.experts.count * self.experts.elements if self.experts else 0
        return self.matmul + self.head + self.embedding + self.small + experts

    @property
    def token_bytes(self) -> float:
        """Bytes that one token takes in the cache."""
        return self.cache_bytes * sum(a.layers * a.kv_heads * (a.key_size + a.value_size) for a in self.attention)


@dataclass(frozen=True)
class Cost:
    """What a step computes and moves at least."""

    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes


class Ceilings(Record):
    """What a device can do per second at most."""

    bytes_per_s: float = Field(gt=0)
    flops_per_s: float = Field(gt=0)

    @property
    def intensity(self) -> float:
        """FLOPs per byte at which both bounds meet."""
        return self.flops_per_s / self.bytes_per_s


class Knee(Record):
    """Where memory stops being the bound of a step, and computing begins to be."""

    intensity: float = Field(description="FLOPs per byte")
    rows: int | None = Field(description="the least rows per slot that reach it; None where no sensible number does")


class StepPoint(Record):
    """A measured step time. Seconds are medians, low and high the quartiles, of so many steps."""

    rows: int = Field(gt=0, description="per slot")
    context: int = Field(ge=0, description="cached tokens of each slot")
    slots: int = Field(default=1, gt=0)
    seconds: float = Field(gt=0)
    low_s: float = Field(gt=0)
    high_s: float = Field(gt=0)
    steps: int = Field(gt=0)


def step_cost(shape: ModelShape, rows: int, context: int, slots: int = 1) -> Cost:
    """FLOPs and bytes of one step.

    Args:
        rows: Q, per slot.
        context: cached tokens of each slot before the step.
        slots: S. Weights are read once for all of them, the cache is each one's own.
    """
    tokens = rows * slots
    weights = float(shape.matmul + shape.head + shape.small + tokens * shape.embedding_width)
    products = float(shape.matmul + shape.head)
    if shape.experts:
        weights += shape.experts.distinct(tokens) * shape.experts.elements
        products += shape.experts.active * shape.experts.elements
    cells = 0
    for some in shape.attention:
        size, cached = some.key_size + some.value_size, some.cached(context)
        products += some.layers * some.query_heads * size * (cached + rows)
        # New rows are written and, by the rows that see them, read.
        cells += some.layers * some.kv_heads * size * slots * (cached + 2 * rows)
    return Cost(2.0 * products * tokens, weights * shape.weight_bytes + cells * shape.cache_bytes)


def bound_s(cost: Cost, ceilings: Ceilings) -> float:
    """Seconds that a step takes at least: moving and computing overlap, so the longer of the two."""
    return max(cost.bytes / ceilings.bytes_per_s, cost.flops / ceilings.flops_per_s)


def knee(shape: ModelShape, ceilings: Ceilings, context: int, slots: int = 1) -> Knee:
    """Where the two bounds of a step meet; its intensity grows with its rows."""

    def computes(rows: int) -> bool:
        return step_cost(shape, rows, context, slots).intensity >= ceilings.intensity

    high = 1
    while not computes(high):
        high *= 2
        if high > _MOST_ROWS:
            return Knee(intensity=ceilings.intensity, rows=None)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if computes(middle) else (middle, high)
    return Knee(intensity=ceilings.intensity, rows=high)


def free_rows(curve: Mapping[int, float], tolerance: float = 0.10) -> int:
    """How many rows cost at most ``tolerance`` over one row: the largest measured count that does.

    A smaller count that costs more is no obstacle: a step can be padded with rows. Nothing is assumed between counts.

    Args:
        curve: seconds by rows, 1 among them.
    """
    if 1 not in curve:
        raise ValueError("free rows are counted against a step of one row, which this curve does not have")
    return max(rows for rows, seconds in curve.items() if seconds <= (1.0 + tolerance) * curve[1])


class StepTimes:
    """Step seconds anywhere, from measured ones.

    Interpolated is the share of the bound that a step reaches, which varies little: piecewise linear in logarithms,
    over rows along each measured context, then over ``1 + context``. Several slots take the share of one slot with all
    their rows, times a correction interpolated from their own measurements. Every measured point is met exactly;
    outside, the share of the nearest point is kept (:meth:`covers` tells inside from outside).

    Args:
        points: measured; at least one of one slot.
    """

    def __init__(self, shape: ModelShape, ceilings: Ceilings, points: Iterable[StepPoint]) -> None:
        self._shape, self._ceilings, self._points = shape, ceilings, tuple(points)
        single: dict[int, dict[int, float]] = defaultdict(dict)
        for point in self._points:
            if point.slots == 1:
                single[point.context][point.rows] = self._share(point)
        if not single:
            raise ValueError("step times need at least one measured step of one slot")
        self._single = {math.log1p(context): _line(by_rows) for context, by_rows in single.items()}
        several: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for point in self._points:
            if point.slots > 1:
                found = self._share(point) - self._one_slot(point.rows * point.slots, point.context)
                several[point.slots][point.rows].append(found)
        means = {slots: {rows: sum(c) / len(c) for rows, c in found.items()} for slots, found in several.items()}
        self._several = {0.0: _line({1: 0.0}), **{math.log(slots): _line(found) for slots, found in means.items()}}

    def seconds(self, rows: int, context: int, slots: int = 1) -> float:
        """Seconds of a step of ``rows`` rows in each of ``slots`` slots behind ``context`` cached tokens each."""
        share = self._one_slot(rows * slots, context)
        share += _between(self._several, math.log(slots), math.log(rows))
        return bound_s(step_cost(self._shape, rows, context, slots), self._ceilings) / math.exp(share)

    def covers(self, rows: int, context: int, slots: int = 1) -> bool:
        """Whether it lies inside of what was measured: one point has at most, another at least, all three figures."""

        def sides(point: StepPoint) -> tuple[bool, bool]:
            pairs = ((point.rows, rows), (point.context, context), (point.slots, slots))
            return all(a <= b for a, b in pairs), all(a >= b for a, b in pairs)

        below, above = zip(*map(sides, self._points), strict=True)
        return any(below) and any(above)

    def _share(self, point: StepPoint) -> float:
        """Logarithm of the share of its bound that a measured step reached."""
        cost = step_cost(self._shape, point.rows, point.context, point.slots)
        return math.log(bound_s(cost, self._ceilings) / point.seconds)

    def _one_slot(self, rows: int, context: int) -> float:
        return _between(self._single, math.log1p(context), math.log(rows))


def _line(values: Mapping[int, float]) -> _Line:
    """Values over the logarithms of their keys."""
    keys = sorted(values)
    return [math.log(key) for key in keys], [values[key] for key in keys]


def _between(lines: Mapping[float, _Line], at: float, along: float) -> float:
    """The value at ``along`` of each line, interpolated between the lines; the ends' own outside of them."""
    places = sorted(lines)
    return float(np.interp(at, places, [np.interp(along, *lines[place]) for place in places]))
