"""Concurrency: throughput of AR and of a drafter as more sequences are stepped together, and where they cross."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from operator import truediv

from benchmarks.gpu_check import predict, sessions, shapes
from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.records import Figure
from benchmarks.gpu_check.shapes import WANTED
from specbench.profiling.shape import shape_of
from specbench.results.schema import SimulatedAcceptance
from specbench.runner.methods import plan_methods

_FAMILY = WANTED[1]
_ACCEPTANCE = 4.0
_DRAFTS = 16  # rows of a block
_SHORT = 48  # tokens of an answer


def run(bench: Bench) -> Iterator[Figure]:
    """AR and ``jf`` at four tokens a forward, from one sequence to as many as memory has room for."""
    size = bench.size
    tokens = min(_SHORT, size.tokens)
    capacity = size.crowd_context + tokens + _DRAFTS
    methods = plan_methods(["jf"], [f"jf.n={_DRAFTS}"])
    cells = capacity + 2 * methods[1].max_rows + _DRAFTS
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
    with sessions.session(bench, loaded, methods, capacity=capacity, slots=max(counts), simulated=simulated) as opened:
        cost, ceilings = shape_of(opened.engine), bench.ceilings
        for count in counts:
            prompts = [sessions.prompt(loaded, size.crowd_context, at) for at in range(count)]
            speeds = []
            for method in opened.methods:
                sessions.decode(opened, method, prompts, tokens, count)  # captures what it needs
                before = opened.report().get("late_captures", 0)
                records = sessions.decode(opened, method, prompts, tokens, count)
                late = opened.report().get("late_captures", 0) - before
                speeds.append(sessions.tokens_a_second(records))
                expected = predict.step(shape, cost, ceilings, 1, size.crowd_context, count)
                known = expected if method.name == "ar" else None
                yield Figure(
                    f"{method.name}, {count} sequences", speeds[-1], "tok/s", shape=shape.name,
                    note=f"{tokens} tokens each behind {size.crowd_context}, {late} captures while timed",
                    **predict.fields(known, partial(truediv, count)),
                )  # fmt: skip
            ratios[count] = speeds[1] / speeds[0]
            yield Figure(f"jf over ar, {count} sequences", ratios[count], shape=shape.name)
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
