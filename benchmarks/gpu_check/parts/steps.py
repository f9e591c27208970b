"""Steps: AR, and the time of a step over its rows, on dummy weights of large models."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.gpu_check import predict, sessions
from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.parts import each
from benchmarks.gpu_check.records import Figure
from benchmarks.gpu_check.shapes import WANTED, Shape
from specbench.engine import Sampling
from specbench.engine.buckets import ROW_BUCKETS
from specbench.hardware.roofline import step_cost
from specbench.profiling.shape import shape_of
from specbench.runner import Session
from specbench.runner.methods import plan_methods

#: A step of so many rows over one of one row: more is a step that makes wide trees dear.
ROW_AIMS = {16: 1.05, 64: 1.15, 128: 1.3, 256: 1.9}
_SAMPLINGS = {
    "T=0.8": Sampling(0.8, seed=1),
    "T=0.8, top-k 50": Sampling(0.8, top_k=50, seed=1),
    "T=0.8, top-p 0.95": Sampling(0.8, top_p=0.95, seed=1),
}
_FIRST_ROWS = 64  # the ladder is climbed in two stages, so that what most trees need is there early


def run(bench: Bench) -> Iterator[Figure]:
    """Both families, the more valuable one first."""
    yield from each(WANTED, partial(_family, bench))


def _family(bench: Bench, family: str) -> Iterator[Figure]:
    size = bench.size
    capacity = size.context + size.tokens
    shape, loaded, said = sessions.model_of(bench, family, capacity + 2 * size.rows)
    yield from said
    if shape is None or loaded is None:
        return
    methods = plan_methods(["jacobi"], [f"jacobi.n={size.rows}"])
    with sessions.session(bench, loaded, methods, capacity=capacity) as opened:
        yield from one_row(bench, shape, opened)
        done = 1
        for rows in sorted({min(_FIRST_ROWS, size.rows), size.rows}):
            yield from ladder(bench, shape, opened, rows, above=done)
            done = rows
        yield from sessions.captures(shape.name, opened.engine)
        yield from products(shape, opened)
        yield from sampled(bench, shape, opened, min(_FIRST_ROWS, size.rows))


def prefix(layers: predict.Layers) -> str:
    """Of the names of figures: none says how layers run by default."""
    return "" if layers == "fused" else f"{layers} "


def one_row(bench: Bench, shape: Shape, opened: Session, layers: predict.Layers = "fused") -> Iterator[Figure]:
    """AR: its step alone, then as a request is decoded, with the loop around it."""
    size, engine, how = bench.size, opened.engine, prefix(layers)
    cost, ceilings = shape_of(engine), bench.ceilings
    seconds, padded = sessions.step_times(engine, 1, size.context)[1]
    expected = predict.step(shape, cost, ceilings, 1, size.context, layers=layers)
    note = f"context {size.context}, padded to {padded} rows, median of its replays"
    yield Figure(
        f"{how}AR step", 1e3 * seconds, "ms", note=note, shape=shape.name, key=f"{how}ar_ms",
        **predict.fields(expected),
    )  # fmt: skip
    if ceilings:
        least = step_cost(cost, 1, size.context).bytes / ceilings.bytes_per_s
        yield Figure(
            f"{how}AR step, share of the copy bandwidth", least / seconds, "share", ">= 0.8",
            shape=shape.name, key=f"{how}ar_share", **predict.fields(expected, lambda taken: least / taken),
        )  # fmt: skip
    prompt = [sessions.prompt(opened.model, size.context)]
    records = sessions.decode(opened, opened.methods[0], prompt, size.tokens)
    yield Figure(
        f"{how}AR decoding", sessions.tokens_a_second(records), "tok/s", shape=shape.name, key=f"{how}ar_tok_s",
        note=f"one request, {size.tokens} tokens behind {size.context}",
        **predict.fields(expected, lambda taken: 1 / taken),
    )  # fmt: skip


def ladder(
    bench: Bench, shape: Shape, opened: Session, rows: int, *, above: int = 1, layers: predict.Layers = "fused"
) -> Iterator[Figure]:
    """Steps of more than ``above`` rows up to ``rows`` of them."""
    context, how = bench.size.context, prefix(layers)
    cost, ceilings = shape_of(opened.engine), bench.ceilings
    times = sessions.step_times(opened.engine, rows, context)
    one = times[1][0]
    for count in (bucket for bucket in ROW_BUCKETS if above < bucket <= rows and bucket in times):
        seconds, padded = times[count]
        expected = predict.step(shape, cost, ceilings, count, context, layers=layers)
        note = f"context {context}, padded to {padded} rows" if padded != count else f"context {context}"
        yield Figure(
            f"{how}step of {count} rows", 1e3 * seconds, "ms", note=note, shape=shape.name,
            **predict.fields(expected),
        )  # fmt: skip
        if count in ROW_AIMS:
            yield Figure(
                f"{how}step of {count} rows over one row",
                seconds / one,
                aim=f"<= {ROW_AIMS[count]}",
                shape=shape.name,
                key=f"{how}rows_{count}",
            )


def sampled(bench: Bench, shape: Shape, opened: Session, rows: int) -> Iterator[Figure]:
    """A step above temperature 0, and with filters, over the greedy one."""
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
            yield Figure(
                f"step of {rows} rows at {what} over greedy", taken / least, aim="<= 1.1", shape=shape.name,
                note=f"{1e3 * taken:.4g} ms against {1e3 * least:.4g} ms",
            )  # fmt: skip
    finally:
        engine.sampling = greedy


def products(shape: Shape, opened: Session) -> Iterator[Figure]:
    """The library's products of few rows over ours, by shape of weights."""
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
