"""Compare steps with fused layers, with torch.compile and with transformers' own layers."""

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
#: Ways to run the layers; after the first family only as many as time allows.
_LAYERS: tuple[predict.Layers, ...] = ("compiled", "plain")


def predicted(known: Known) -> Iterator[Figure]:
    """Predict the steps of both families."""
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
    """Measure both families, with the cache of compiled code in the check's folder."""
    yield from each(WANTED, partial(_family, bench))


def _family(bench: Bench, family: str) -> Iterator[Figure]:
    size, rows = bench.size, min(_ROWS, bench.size.rows)
    capacity = size.context + size.tokens
    shape, loaded, left_out = sessions.model_of(bench, family, capacity + 2 * rows)
    yield from left_out
    if shape is None or loaded is None:
        return
    yield from each(_layers(family), partial(_steps, bench, shape, loaded, rows, capacity))


def _steps(
    bench: Bench, shape: Shape, loaded: LoadedModel, rows: int, capacity: int, layers: predict.Layers
) -> Iterator[Figure]:
    """Time steps with one kind of layers, separately, because an image may lack a compiler."""
    methods = plan_methods(["jacobi"], [f"jacobi.n={rows}"])
    expected = predict.expected(bench, partial(_expected, shape, layers))
    compiled = layers == "compiled"
    # Compiled kernels are not torch operations, so a rehearsal cannot record them.
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
