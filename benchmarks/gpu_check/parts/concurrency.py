"""Measure the throughput of AR and of a drafter by the number of sequences, and where the two cross."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

from benchmarks.gpu_check import predict, sessions, shapes
from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.predict import Known
from benchmarks.gpu_check.records import Figure
from benchmarks.gpu_check.shapes import WANTED, Shape
from specbench.decoding import Method
from specbench.hardware.roofline import step_cost
from specbench.planning.methods import plan_methods
from specbench.results.schema import SimulatedAcceptance

_FAMILY = WANTED[1]
_ACCEPTANCE = 4.0
_BLOCK = 16  # tokens of a block; a tree has several blocks and chains, up to 77 rows
_SHORT = 48  # tokens of an answer


def predicted(known: Known) -> Iterator[Figure]:
    """Predict the throughput of both methods."""
    for shape in known.shapes([_FAMILY]):
        yield from _expected(shape, known)


def _methods() -> Sequence[Method]:
    """Return the methods: AR and ``jf``."""
    return plan_methods(["jf"], [f"jf.n={_BLOCK}"])


def _expected(shape: Shape, known: Known) -> Iterator[Figure]:
    """Predict AR from its kernels, and ``jf`` from the roofline bound alone, as ``sweep --dry-run`` does.

    The rows of many sequences exceed the captured sizes, and how many rows of its tree ``jf`` uses depends on the text:
    every step is assumed to use all of them.
    """
    cost, rows, context = known.cost(shape), _methods()[1].max_rows, known.size.crowd_context
    for count in known.size.concurrency:
        step = known.crowd(shape, count)
        one, all_rows = (known.bound(step_cost(cost, each, context, count)) for each in (1, rows))
        basis = f"{_ACCEPTANCE:g} tokens per forward, roofline bound of {rows} rows each: {all_rows.basis}"
        for name, value, unit, why in (
            (f"ar, {count} sequences", count / step.seconds, "tok/s", step.basis),
            (f"jf, {count} sequences", count * _ACCEPTANCE / all_rows.seconds, "tok/s", basis),
            (
                f"jf over ar, {count} sequences", _ACCEPTANCE * one.seconds / all_rows.seconds, "ratio",
                f"{basis}, divided by the bound of one row each",
            ),
        ):  # fmt: skip
            yield Figure(name, None, unit, shape=shape.name, predicted=value, basis=why)


def run(bench: Bench) -> Iterator[Figure]:
    """Measure AR and ``jf`` at four tokens per forward, from one sequence to as many as fit in memory."""
    size = bench.size
    tokens = min(_SHORT, size.tokens)
    capacity = size.crowd_context + tokens + _BLOCK
    methods = _methods()
    cells = capacity + 2 * methods[1].max_rows + _BLOCK
    shape, loaded, left_out = sessions.model_of(bench, _FAMILY, cells)
    yield from left_out
    if shape is None or loaded is None:
        return
    room = sessions.free_bytes(bench) - shapes.WORKING_BYTES
    each = 2 * cells * shapes.cached_bytes(shapes.config(shape.family), shape.layers)  # memory of the graphs too
    counts = [count for count in size.concurrency if count == 1 or count * each <= room]
    for count in sorted({*size.concurrency} - {*counts}):
        yield Figure(f"{count} sequences", None, note="their caches do not fit in memory", shape=shape.name)
    simulated = {methods[1].label: SimulatedAcceptance(mean=_ACCEPTANCE, spread=0.0)}
    ratios: dict[int, float] = {}
    expected = predict.expected(bench, partial(_expected, shape))
    with sessions.session(bench, loaded, methods, capacity=capacity, slots=max(counts), simulated=simulated) as opened:
        opened.capture(size.crowd_context)
        for count in counts:
            prompts = [sessions.prompt(loaded, size.crowd_context, at) for at in range(count)]
            speeds = []
            for method in opened.methods:
                sessions.decode(opened, method, prompts, tokens, count)  # warm-up
                before = opened.report().get("late_captures", 0)
                records = sessions.decode(opened, method, prompts, tokens, count)
                late = opened.report().get("late_captures", 0) - before
                speeds.append(sessions.tokens_a_second(records))
                name = f"{method.name}, {count} sequences"
                yield Figure(
                    name, speeds[-1], "tok/s", shape=shape.name,
                    note=f"{tokens} tokens each after {size.crowd_context}, {late} captures while timed",
                    **expected.fields(name),
                )  # fmt: skip
            ratios[count] = speeds[1] / speeds[0]
            name = f"jf over ar, {count} sequences"
            yield Figure(name, ratios[count], shape=shape.name, **expected.fields(name))
    where, note = crossing(ratios)
    yield Figure(
        "sequences at which jf no longer pays", where, "sequences", note=note, shape=shape.name, key="crossing"
    )


def crossing(ratios: Mapping[int, float]) -> tuple[float | None, str]:
    """Return the number of sequences at which a ratio falls below 1 (log-interpolated), and a note."""
    points = sorted(ratios.items())
    if points[0][1] < 1:
        return float(points[0][0]), f"it does not pay off at {points[0][0]} either"
    for (low, above), (high, below) in pairwise(points):
        if below < 1 <= above:
            share = math.log(above) / (math.log(above) - math.log(below))
            return low * (high / low) ** share, f"between {low} and {high} by the logarithm of the ratio"
    return None, f"it pays off up to {points[-1][0]}, the largest number measured"
