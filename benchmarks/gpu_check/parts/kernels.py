"""Profile the kernels of a step with torch's profiler: which kernels, how often, how long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_check import predict, sessions
from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.parts import each
from benchmarks.gpu_check.predict import Expected, Known
from benchmarks.gpu_check.records import Figure
from benchmarks.gpu_check.shapes import WANTED, Shape
from specbench.decoding import TokenTree
from specbench.engine import Engine
from specbench.planning.methods import plan_methods

_ROWS = 64
_SHOWN = 14  # kernels listed per step


def predicted(known: Known) -> Iterator[Figure]:
    """Predict the number of launches of both steps."""
    for shape in known.shapes(WANTED[:1]):
        yield from _expected(shape, known)


def _expected(shape: Shape, known: Known) -> Iterator[Figure]:
    """Predict the number of all kernels of a step, including those outside the layers."""
    for rows, step in known.ladder(shape, (1, min(_ROWS, known.size.rows))).items():
        counted = step.nodes
        assert counted is not None
        low, high = min(counted.layers), max(counted.layers)
        a_layer = f"{low}" if low == high else f"{low} to {high}"
        basis = f"{a_layer} for each of {len(counted.layers)} layers and {counted.outside} outside (counted)"
        for what, value in (("kernels", counted.nodes), ("launches a layer", counted.nodes / shape.layers)):
            yield Figure(
                f"step of {rows} rows: {what}", None, "kernels", shape=shape.name, predicted=value, basis=basis
            )  # fmt: skip


def run(bench: Bench) -> Iterator[Figure]:
    """Replay the steps of one row and of 64 under the profiler."""
    size, rows = bench.size, min(_ROWS, bench.size.rows)
    capacity = size.context + rows * (size.replays + 2)
    shape, loaded, left_out = sessions.model_of(bench, WANTED[0], capacity + 2 * rows)
    yield from left_out
    if shape is None or loaded is None:
        return
    expected = predict.expected(bench, partial(_expected, shape))
    with sessions.session(bench, loaded, plan_methods(["jacobi"], [f"jacobi.n={rows}"]), capacity=capacity) as opened:
        engine = opened.engine
        engine.prepare(rows, context=size.context)
        prompt = sessions.prompt(loaded, size.context)
        yield from each((1, rows), partial(_table, bench, shape, engine, prompt, expected))


def _table(
    bench: Bench, shape: Shape, engine: Engine, prompt: list[int], expected: Expected, rows: int
) -> Iterator[Figure]:
    replays, on_gpu = bench.size.replays, engine.device.type == "cuda"
    slot = engine.alloc()
    try:
        root = engine.prefill(slot, prompt).emitted[-1]
        tree = TokenTree.chain([root] * rows)
        engine.step({slot: tree})
        with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as watched:
            began = time.perf_counter()
            for _ in range(replays):
                engine.step({slot: tree})
            wall = (time.perf_counter() - began) / replays
    finally:
        engine.free(slot)
    wanted = DeviceType.CUDA if on_gpu else DeviceType.CPU
    events = [one for one in watched.key_averages() if one.device_type == wanted]
    spent = {one.key: (one.self_device_time_total if on_gpu else one.self_cpu_time_total) / replays for one in events}
    counts = {one.key: one.count / replays for one in events}
    if not events:
        yield Figure(
            f"kernels of a step of {rows} rows", None, note="the profiler reports none; it may lack permission"
        )
        return
    name, launches, busy = f"step of {rows} rows", sum(counts.values()), sum(spent.values())
    what = f"{replays} replays{'' if on_gpu else ', operations of torch on a CPU'}"
    yield Figure(
        f"{name}: kernels", launches, "kernels", note=what, shape=shape.name, **expected.fields(f"{name}: kernels")
    )  # fmt: skip
    yield Figure(
        f"{name}: launches a layer", launches / shape.layers, "kernels", shape=shape.name,
        note="kernels outside the layers included", **expected.fields(f"{name}: launches a layer"),
    )  # fmt: skip
    yield Figure(f"{name}: device busy", busy, "µs", note=what, shape=shape.name)
    yield Figure(f"{name}: device busy, share of the wall", busy / (1e6 * wall), "share", shape=shape.name)
    for key in sorted(spent, key=lambda one: -spent[one])[:_SHOWN]:
        yield Figure(
            f"{name}: {key[:80]}", spent[key], "µs", note=f"{counts[key]:g} a step", shape=shape.name
        )  # fmt: skip
