"""The least that a step must compute and move (roofline), and the time that a device needs for it.

A step of S slots and Q rows is one target forward over S·Q rows, with ``context`` cached tokens in each slot. Its cost
counts once every byte that any implementation must move (weights, KV cache, embedding rows), and two FLOPs per
multiplied weight or score. Activations, logits and elementwise operations are not counted, because a well-fused step
keeps them in caches; so the time is a lower bound. Attention counts all Q new rows for each row, as masking kernels
compute them, although a row of a tree sees only its ancestors.

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

#: Largest number of rows to search for a knee.
_MOST_ROWS = 1 << 16

# (ascending positions, a value at each).
_Line = tuple[Sequence[float], Sequence[float]]


class Experts(Record):
    """Experts of a mixture-of-experts model, over all layers."""

    count: int = Field(gt=0, description="experts of a layer")
    active: int = Field(gt=0, description="experts that a row goes through in a layer")
    elements: int = Field(gt=0, description="weights of one expert, summed over the layers that have them")
    routed: dict[int, float] = Field(
        default_factory=dict,
        description="rows -> experts of a layer that so many consecutive tokens of a text read, counted in a forward; "
        "empty if not counted",
    )

    def distinct(self, rows: float) -> float:
        """Number of experts of a layer that ``rows`` rows read: interpolated between counted rows.

        Without a count, and for rows beyond the counted ones, routing is taken as uniform and independent. Routing of
        real text is uneven, so the real number is usually smaller.
        """
        if not self.routed:
            return self._uniform(rows)
        counted = sorted(self.routed)
        read = float(np.interp(rows, counted, [self.routed[each] for each in counted]))
        beyond = max(0.0, rows - counted[-1])
        return read + self._uniform(beyond) * (1.0 - read / self.count)

    def _uniform(self, rows: float) -> float:
        return self.count * (1.0 - (1.0 - self.active / self.count) ** rows)


class AttentionLayers(Record):
    """Layers of one attention shape. Fewer KV heads than query heads is grouped-query attention."""

    layers: int = Field(gt=0)
    query_heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    key_size: int = Field(gt=0, description="elements of a head's key")
    value_size: int = Field(gt=0, description="elements of a head's value")
    window: int | None = Field(default=None, description="a row sees keys less than this many positions before it")

    def cached(self, context: int) -> int:
        """Cached tokens that a step has to read when ``context`` tokens are cached."""
        return context if self.window is None else min(context, self.window - 1)


class ModelShape(Record):
    """Sizes of a model that decide the cost of its steps, in elements."""

    matmul: int = Field(ge=0, description="weights that every row is multiplied with, without LM head and experts")
    head: int = Field(ge=0, description="weights of the LM head")
    embedding: int = Field(ge=0, description="embedding tables, without a table that the LM head shares")
    embedding_width: int = Field(ge=0, description="elements that one row reads from all embedding tables")
    tied: bool = Field(description="whether the LM head is the embedding table")
    small: int = Field(ge=0, description="norms and biases: read by every step, with negligible FLOPs")
    experts: Experts | None = None
    attention: tuple[AttentionLayers, ...]
    weight_bytes: float = Field(gt=0, description="bytes per weight")
    cache_bytes: float = Field(gt=0, description="bytes per cached element")
    state_bytes: int = Field(default=0, ge=0, description="bytes of the states of recurrent layers of one sequence")

    @property
    def parameters(self) -> int:
        """Number of the model's weights, counting tied ones once."""
        experts = self.experts.count * self.experts.elements if self.experts else 0
        return self.matmul + self.head + self.embedding + self.small + experts

    @property
    def token_bytes(self) -> float:
        """Bytes of one token in the cache."""
        return self.cache_bytes * sum(a.layers * a.kv_heads * (a.key_size + a.value_size) for a in self.attention)


@dataclass(frozen=True)
class Cost:
    """The least that a step must compute and move."""

    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes


class Ceilings(Record):
    """Maximum rates of a device."""

    bytes_per_s: float = Field(gt=0)
    flops_per_s: float = Field(gt=0)

    @property
    def intensity(self) -> float:
        """FLOPs per byte at which both bounds are equal."""
        return self.flops_per_s / self.bytes_per_s


class Knee(Record):
    """The point from which on a step is limited by compute instead of memory."""

    intensity: float = Field(description="FLOPs per byte")
    rows: int | None = Field(description="smallest number of rows per slot that reaches it; None above 65,536")


class StepPoint(Record):
    """A measured step time: the median of ``steps`` steps, with the quartiles as low and high."""

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
        slots: S. Weights are read once for all slots, and each slot has its own cache.
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
        # New rows are written once and read once.
        cells += some.layers * some.kv_heads * size * slots * (cached + 2 * rows)
    states = 2 * slots * shape.state_bytes  # read and written
    return Cost(2.0 * products * tokens, weights * shape.weight_bytes + cells * shape.cache_bytes + states)


def bound_s(cost: Cost, ceilings: Ceilings) -> float:
    """Lower bound of a step's seconds: moving and computing overlap, so it is the longer of the two."""
    return max(cost.bytes / ceilings.bytes_per_s, cost.flops / ceilings.flops_per_s)


def knee(shape: ModelShape, ceilings: Ceilings, context: int, slots: int = 1) -> Knee:
    """Find the number of rows at which the two bounds of a step are equal; its intensity grows with the rows."""

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
    """Largest measured row count that costs at most ``tolerance`` more than one row.

    Smaller counts may cost more, since a step can be padded with rows. There is no interpolation between counts.

    Args:
        curve: seconds by row count; must contain 1.
    """
    if 1 not in curve:
        raise ValueError("free rows are relative to a step of one row, which this curve does not have")
    return max(rows for rows, seconds in curve.items() if seconds <= (1.0 + tolerance) * curve[1])


class StepTimes:
    """Step times for any rows, context and slots, interpolated from measured ones.

    The interpolated quantity is the share of the bound that a step reaches, because it varies little: piecewise linear
    in logarithms, over rows for each measured context, then over ``1 + context``. Several slots use the share of one
    slot with all their rows, times a correction interpolated from measurements with several slots. Measured points are
    reproduced exactly; outside the measured range, the share of the nearest point is used (see :meth:`covers`).

    Args:
        points: measured points, at least one of them with one slot.
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
        """Seconds of a step of ``rows`` rows in each of ``slots`` slots with ``context`` cached tokens each."""
        share = self._one_slot(rows * slots, context)
        share += _between(self._several, math.log(slots), math.log(rows))
        return bound_s(step_cost(self._shape, rows, context, slots), self._ceilings) / math.exp(share)

    def covers(self, rows: int, context: int, slots: int = 1) -> bool:
        """Whether a step is within the measured range: some point is no larger, and some no smaller, in all three."""

        def sides(point: StepPoint) -> tuple[bool, bool]:
            pairs = ((point.rows, rows), (point.context, context), (point.slots, slots))
            return all(a <= b for a, b in pairs), all(a >= b for a, b in pairs)

        below, above = zip(*map(sides, self._points), strict=True)
        return any(below) and any(above)

    def _share(self, point: StepPoint) -> float:
        """Logarithm of the share of the bound that a measured step reached."""
        cost = step_cost(self._shape, point.rows, point.context, point.slots)
        return math.log(bound_s(cost, self._ceilings) / point.seconds)

    def _one_slot(self, rows: int, context: int) -> float:
        return _between(self._single, math.log1p(context), math.log(rows))


def _line(values: Mapping[int, float]) -> _Line:
    """Values over the logarithms of their keys."""
    keys = sorted(values)
    return [math.log(key) for key in keys], [values[key] for key in keys]


def _between(lines: Mapping[float, _Line], at: float, along: float) -> float:
    """Interpolate each line at ``along``, then between the lines at ``at``; constant outside."""
    places = sorted(lines)
    return float(np.interp(at, places, [np.interp(along, *lines[place]) for place in places]))
