"""Compiled: the same steps with the layers through torch.compile, and as transformers has them, beside the fused."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.gpu_check import predict, sessions
from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.parts import each
from benchmarks.gpu_check.parts.steps import expected_of, ladder, one_row, row_counts
from benchmarks.gpu_check.predict import Known
from benchmarks.gpu_check.records import Figure
from benchmarks.gpu_check.shapes import WANTED, Shape
from specbench.models import LoadedModel
from specbench.planning.methods import plan_methods

_ROWS = 64
#: How layers run; of all but the first family for as many of them as there is time for.
_LAYERS: tuple[predict.Layers, ...] = ("compiled", "plain")


def predicted(known: Known) -> Iterator[Figure]:
    """What both families should take."""
    for shape in known.shapes(WANTED):
        for layers in _layers(shape.family):
            yield from _expected(shape, layers, known)


def _expected(shape: Shape, layers: predict.Layers, known: Known) -> Iterator[Figure]:
    most = min(_ROWS, known.size.rows)
    yield from expected_of(shape, most, known, layers)
    other, fused = known.ladder(shape, row_counts(most), layers)[1], known.step(shape, 1)
    yield Figure(
        f"{layers} AR step over fused", None, shape=shape.name, predicted=other.seconds / fused.seconds,
        basis=other.basis,
    )  # fmt: skip


def _layers(family: str) -> tuple[predict.Layers, ...]:
    return _LAYERS if family == WANTED[0] else _LAYERS[:1]


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
    yield from each(_layers(family), partial(_steps, bench, shape, loaded, rows, capacity))


def _steps(
    bench: Bench, shape: Shape, loaded: LoadedModel, rows: int, capacity: int, layers: predict.Layers
) -> Iterator[Figure]:
    """Steps whose layers run in one way: an image without a compiler still has the other."""
    methods = plan_methods(["jacobi"], [f"jacobi.n={rows}"])
    expected = predict.expected(bench, partial(_expected, shape, layers))
    compiled = layers == "compiled"
    # Compiled kernels are no operations of torch any more, which is what a rehearsal records.
    graphs = not (bench.rehearse and compiled)
    native = None if compiled else False
    with sessions.session(
        bench, loaded, methods, capacity=capacity, compile=compiled, graphs=graphs, native=native
    ) as opened:
        fused = bench.journal.find("ar_ms", shape.name)
        for figure in one_row(bench, shape, opened, expected, layers):
            yield figure
            if fused and figure.key == f"{layers} ar_ms" and figure.value:
                name = f"{layers} AR step over fused"
                yield Figure(
                    name, figure.value / fused, shape=shape.name, key=layers, **expected.fields(name)
                )  # fmt: skip
        yield from ladder(bench, shape, opened, rows, expected, layers=layers)
        yield from sessions.captures(shape.name, opened.engine)
