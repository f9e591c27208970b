"""Compiled: the same steps with the layers through torch.compile, beside those as they are."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.gpu_check import sessions
from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.parts import each
from benchmarks.gpu_check.parts.steps import ladder, one_row
from benchmarks.gpu_check.records import Figure
from benchmarks.gpu_check.shapes import WANTED
from specbench.runner.methods import plan_methods

_ROWS = 64


def run(bench: Bench) -> Iterator[Figure]:
    """Both families, with the cache of compiled code in the folder of the check."""
    yield from each(WANTED, partial(_family, bench))


def _family(bench: Bench, family: str) -> Iterator[Figure]:
    size, rows = bench.size, min(_ROWS, bench.size.rows)
    capacity = size.context + size.tokens
    shape, loaded, said = sessions.model_of(bench, family, capacity + 2 * rows)
    yield from said
    if shape is None or loaded is None:
        return
    methods = plan_methods(["jacobi"], [f"jacobi.n={rows}"])
    # Compiled kernels are no operations of torch any more, which is what a rehearsal records.
    graphs = not bench.rehearse
    with sessions.session(bench, loaded, methods, capacity=capacity, compile=True, graphs=graphs) as opened:
        plain = bench.journal.find("ar_ms", shape.name)
        for figure in one_row(bench, shape, opened, compiled=True):
            yield figure
            if plain and figure.key == "compiled ar_ms" and figure.value:
                yield Figure("compiled AR step over as it is", figure.value / plain, shape=shape.name, key="compiled")
        yield from ladder(bench, shape, opened, rows, compiled=True)
        yield from sessions.captures(shape.name, opened.engine)
