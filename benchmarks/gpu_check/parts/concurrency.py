"""Concurrency: throughput of AR and of a drafter as more sequences are stepped together, and where they cross."""

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
_BLOCK = 16  # tokens of a block; a tree has several blocks and chains, and announces up to 77 rows
_SHORT = 48  # tokens of an answer


def predicted(known: Known) -> Iterator[Figure]:
    """What both should reach."""
    for shape in known.shapes([_FAMILY]):
        yield from _expected(shape, known)


def _methods() -> Sequence[Method]:
    """AR, and ``jf``."""
    return plan_methods(["jf"], [f"jf.n={_BLOCK}"])


def _expected(shape: Shape, known: Known) -> Iterator[Figure]:
    """AR by its kernels; ``jf`` by the roofline's bounds alone, as ``sweep --dry-run`` has them.

    So many rows of many sequences are more than what is captured, and how many of its tree's rows ``jf`` uses depends
    on the text: each step is taken to have all of them.
    """
    cost, rows, context = known.cost(shape), _methods()[1].max_rows, known.size.crowd_context
    for count in known.size.concurrency:
        step = known.crowd(shape, count)
        one, all_rows = (known.bound(step_cost(cost, each, context, count)) for each in (1, rows))
        basis = f"{_ACCEPTANCE:g} tokens a forward, the roofline's bound of {rows} rows each: {all_rows.basis}"
        for name, value, unit, why in (
            (f"ar, {count} sequences", count / step.seconds, "tok/s", step.basis),
            (f"jf, {count} sequences", count * _ACCEPTANCE / all_rows.seconds, "tok/s", basis),
            (
                f"jf over ar, {count} sequences", _ACCEPTANCE * one.seconds / all_rows.seconds, "ratio",
                f"{basis}, over that of one row each",
            ),
        ):  # fmt: skip
            yield Figure(name, None, unit, shape=shape.name, predicted=value, basis=why)


def run(bench: Bench) -> Iterator[Figure]:
    """AR and ``jf`` at four tokens a forward, from one sequence to as many as memory has room for."""
    size = bench.size
    tokens = min(_SHORT, size.tokens)
    capacity = size.crowd_context + tokens + _BLOCK
    methods = _methods()
    cells = capacity + 2 * methods[1].max_rows + _BLOCK
    shape, loaded, said = sessions.model_of(bench, _FAMILY, cells)
    yield from said
    if shape is None or loaded is None:
        return
    room = sessions.free_bytes(bench) - shapes.WORKING_BYTES
    each = 2 * cells * shapes.cached_bytes(shapes.config(shape.family), shape.layers)  # the graphs' share as well
    counts = [count for count in size.concurrency if count == 1 or count * each <= room]
    for count in sorted({*size.concurrency} - {*counts}):
        yield Figure(f"{count} sequences", None, note="no memory for their caches", shape=shape.name)
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
                    note=f"{tokens} tokens each behind {size.crowd_context}, {late} captures while timed",
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
    """Where a ratio over numbers of sequences falls below 1, between two of them by its logarithm; and in words."""
    points = sorted(ratios.items())
    if points[0][1] < 1:
        return float(points[0][0]), f"it does not pay at {points[0][0]} either"
    for (low, above), (high, below) in pairwise(points):
        if below < 1 <= above:
            share = math.log(above) / (math.log(above) - math.log(below))
            return low * (high / low) ** share, f"between {low} and {high} by the logarithm of the ratio"
    return None, f"it pays up to {points[-1][0]}, the most that were measured"
