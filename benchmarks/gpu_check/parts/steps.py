"""Time AR, and steps by their number of rows, with dummy weights of large models."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.gpu_check import predict, sessions
from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.parts import each
from benchmarks.gpu_check.predict import Expected, Known
from benchmarks.gpu_check.records import Figure
from benchmarks.gpu_check.shapes import WANTED, Shape
from specbench.engine import Sampling
from specbench.engine.buckets import ROW_BUCKETS
from specbench.hardware.roofline import knee, step_cost
from specbench.planning.methods import plan_methods
from specbench.profiling.shape import shape_of
from specbench.runner import Session

#: Largest acceptable time of a step of these rows, as a multiple of a one-row step: more makes wide trees expensive.
ROW_AIMS = {16: 1.05, 64: 1.15, 128: 1.3, 256: 1.9}
_OVER_ONE = (*ROW_AIMS, 512)

#: Aim for AR's share of the bandwidth, as a fraction of the predicted share. A fixed share would not work, because
#: launches take the same time with fast and slow memory: a GPU with faster memory spends a larger part of a step on
#: launches, so B200 and any model with few weights would miss a fixed 0.8 although nothing is wrong. A tenth is allowed
#: for the assumed time per kernel, and for weights that are read more slowly than a buffer is copied.
AR_SHARE = 0.9
_SAMPLINGS = {
    "T=0.8": Sampling(0.8, seed=1),
    "T=0.8, top-k 50": Sampling(0.8, top_k=50, seed=1),
    "T=0.8, top-p 0.95": Sampling(0.8, top_p=0.95, seed=1),
}
_SAMPLED_AIM = "<= 1.1"
_FIRST_ROWS = 64  # two stages, so that the sizes of most trees are measured early


def predicted(known: Known) -> Iterator[Figure]:
    """Predict the steps of both families."""
    for shape in known.shapes(WANTED):
        yield from expected_of(shape, known.size.rows, known)
        yield from _expected_sampling(shape, known)
        # The check does not measure the knee; ``specbench profile`` does.
        found = knee(known.cost(shape), known.ceilings, known.size.context).rows
        yield Figure("rows at the knee", None, "rows", shape=shape.name, predicted=found, basis="FLOPs per byte alone")


def expected_of(shape: Shape, rows: int, known: Known, layers: predict.Layers = "fused") -> Iterator[Figure]:
    """Predict the step of one row and steps of up to ``rows`` rows."""
    how = prefix(layers)
    counts = row_counts(rows)
    steps = known.ladder(shape, counts, layers)
    one = steps[1]
    assert one.nodes is not None
    share = one.nodes.cost.bytes / known.ceilings.bytes_per_s / one.seconds
    for name, value, unit, aim in (
        ("AR step", 1e3 * one.seconds, "ms", ""),
        ("AR step, share of the copy bandwidth", share, "share", f">= {AR_SHARE * share:.3g}"),
        ("AR decoding", 1 / one.seconds, "tok/s", ""),
    ):
        yield Figure(f"{how}{name}", None, unit, aim, shape=shape.name, predicted=value, basis=one.basis)
    for count in counts[1:]:
        step = steps[count]
        name = f"{how}step of {count} rows"
        yield Figure(name, None, "ms", shape=shape.name, predicted=1e3 * step.seconds, basis=step.basis)
        if count in _OVER_ONE:
            yield Figure(
                f"{name} over one row", None, aim=_row_aim(count), shape=shape.name,
                predicted=step.seconds / one.seconds, basis=step.basis,
            )  # fmt: skip


def row_counts(most: int) -> list[int]:
    """Return the numbers of rows to time, including one row."""
    return [1, *(bucket for bucket in ROW_BUCKETS if 1 < bucket <= most)]


def _expected_sampling(shape: Shape, known: Known) -> Iterator[Figure]:
    """Predict the cost of sampling with a temperature; the cost of filters is not predicted."""
    rows = min(_FIRST_ROWS, known.size.rows)
    greedy, drawn = known.step(shape, rows), known.step(shape, rows, sampled=True)
    what = next(iter(_SAMPLINGS))
    yield Figure(
        f"step of {rows} rows at {what} over greedy", None, aim=_SAMPLED_AIM, shape=shape.name,
        predicted=drawn.seconds / greedy.seconds, basis=drawn.basis,
    )  # fmt: skip


def _row_aim(rows: int) -> str:
    return f"<= {ROW_AIMS[rows]}" if rows in ROW_AIMS else ""


def run(bench: Bench) -> Iterator[Figure]:
    """Measure both families, the more valuable one first."""
    yield from each(WANTED, partial(_family, bench))


def _family(bench: Bench, family: str) -> Iterator[Figure]:
    size = bench.size
    capacity = size.context + size.tokens
    shape, loaded, left_out = sessions.model_of(bench, family, capacity + 2 * size.rows)
    yield from left_out
    if shape is None or loaded is None:
        return
    methods = plan_methods(["jacobi"], [f"jacobi.n={size.rows}"])
    expected = predict.expected(bench, partial(expected_of, shape, size.rows), partial(_expected_sampling, shape))
    with sessions.session(bench, loaded, methods, capacity=capacity, settle=True) as opened:
        yield from one_row(bench, shape, opened, expected)
        sessions.hand_on_products(bench, opened)
        done = 1
        for rows in sorted({min(_FIRST_ROWS, size.rows), size.rows}):
            yield from ladder(bench, shape, opened, rows, expected, above=done)
            done = rows
        yield from sessions.captures(shape.name, opened.engine)
        yield from products(shape, opened)
        yield from sampled(bench, shape, opened, min(_FIRST_ROWS, size.rows), expected)


def prefix(layers: predict.Layers) -> str:
    """Prefix for the names of figures; the default kind of layers has none."""
    return "" if layers == "fused" else f"{layers} "


def one_row(
    bench: Bench, shape: Shape, opened: Session, expected: Expected, layers: predict.Layers = "fused"
) -> Iterator[Figure]:
    """Time AR's step alone, then within a request with the decode loop."""
    size, engine, how = bench.size, opened.engine, prefix(layers)
    cost, ceilings = shape_of(engine), bench.ceilings
    seconds, padded = sessions.step_times(engine, 1, size.context)[1]
    note = f"context {size.context}, padded to {padded} rows, median of its replays"
    name = f"{how}AR step"
    yield Figure(
        name, 1e3 * seconds, "ms", note=note, shape=shape.name, key=f"{how}ar_ms", **expected.fields(name)
    )  # fmt: skip
    if ceilings:
        least = step_cost(cost, 1, size.context).bytes / ceilings.bytes_per_s
        name = f"{how}AR step, share of the copy bandwidth"
        yield Figure(
            name, least / seconds, "share", expected.aim(name), shape=shape.name, key=f"{how}ar_share",
            **expected.fields(name),
        )  # fmt: skip
    prompt = [sessions.prompt(opened.model, size.context)]
    records = sessions.decode(opened, opened.methods[0], prompt, size.tokens)
    name = f"{how}AR decoding"
    yield Figure(
        name, sessions.tokens_a_second(records), "tok/s", shape=shape.name, key=f"{how}ar_tok_s",
        note=f"one request, {size.tokens} tokens after {size.context}", **expected.fields(name),
    )  # fmt: skip


def ladder(
    bench: Bench, shape: Shape, opened: Session, rows: int, expected: Expected, *, above: int = 1,
    layers: predict.Layers = "fused",
) -> Iterator[Figure]:  # fmt: skip
    """Time steps of more than ``above`` and up to ``rows`` rows."""
    context, how = bench.size.context, prefix(layers)
    times = sessions.step_times(opened.engine, rows, context)
    one = times[1][0]
    for count in (bucket for bucket in ROW_BUCKETS if above < bucket <= rows and bucket in times):
        seconds, padded = times[count]
        note = f"context {context}, padded to {padded} rows" if padded != count else f"context {context}"
        name = f"{how}step of {count} rows"
        yield Figure(name, 1e3 * seconds, "ms", note=note, shape=shape.name, **expected.fields(name))
        if count in _OVER_ONE:
            name = f"{name} over one row"
            yield Figure(
                name, seconds / one, aim=_row_aim(count), shape=shape.name, key=f"{how}rows_{count}",
                **expected.fields(name),
            )  # fmt: skip


def sampled(bench: Bench, shape: Shape, opened: Session, rows: int, expected: Expected) -> Iterator[Figure]:
    """Time a step at a temperature above 0, without and with filters, relative to the greedy step."""
    engine = opened.engine
    greedy = engine.sampling

    def seconds(sampling: Sampling) -> float:
        engine.sampling = sampling
        engine.prepare(rows, context=bench.size.context)
        return dict(engine.step_seconds(rows))[rows]

    try:
        least = seconds(greedy)
        for what, sampling in _SAMPLINGS.items():
            taken = seconds(sampling)
            name = f"step of {rows} rows at {what} over greedy"
            yield Figure(
                name, taken / least, aim=_SAMPLED_AIM, shape=shape.name,
                note=f"{1e3 * taken:.4g} ms against {1e3 * least:.4g} ms", **expected.fields(name),
            )  # fmt: skip
    finally:
        engine.sampling = greedy


def products(shape: Shape, opened: Session) -> Iterator[Figure]:
    """Compare the library's products of few rows with ours, by shape of the weights."""
    report = opened.engine.report()
    if why := report.get("why_no_products"):
        yield Figure("products of few rows", None, note=why, shape=shape.name)
    for each_shape in report.get("products", ()):
        timed = [sum(one["seconds"]) for one in each_shape["timed"]]
        used = "ours is used" if each_shape["kernel"] == "own" else f"the library's is used: {each_shape['why_not']}"
        yield Figure(
            f"product of 1 and 16 rows, {each_shape['in']} to {each_shape['out']}: the library's time over ours",
            sum(each_shape["torch_s"]) / min(timed) if timed else None, shape=shape.name, note=used,
        )  # fmt: skip
