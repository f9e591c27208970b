"""Compare the tree attention kernel with torch's SDPA with a dense mask, and with flash-attn for chains."""

from __future__ import annotations

import importlib.util
import json
import traceback
from collections.abc import Iterator
from functools import partial

from benchmarks.gpu_check import foreign, predict, sessions, shapes
from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.predict import Known
from benchmarks.gpu_check.records import Figure
from benchmarks.gpu_check.shapes import Shape
from specbench.hardware.roofline import Cost, step_cost
from specbench.models import LoadedModel, load
from specbench.planning.methods import plan_methods

_FAMILY = shapes.WANTED[1]
_NARROW = 256  # width of the MLPs and vocabulary size: negligible compared with attention
_NAMES = {"triton": "tree attention", "reference": "SDPA with a dense mask", "flash": "flash-attn of a chain"}


def predicted(known: Known) -> Iterator[Figure]:
    """Predict the time of a layer of the family."""
    yield from _expected(shapes.whole(_FAMILY), known)


def _expected(shape: Shape, known: Known) -> Iterator[Figure]:
    """Predict a layer from the longer of its bytes and FLOPs; FLOPs dominate if many rows share a KV head."""
    cost, rows = known.cost(shape), known.size.attention_rows
    (layers,) = cost.attention
    attention = cost.model_copy(
        update={
            **dict.fromkeys(("matmul", "head", "embedding", "embedding_width", "small"), 0),
            "attention": (layers.model_copy(update={"layers": 1}),),
        }
    )
    near = step_cost(attention, rows, 1)
    for context in known.size.contexts:
        far = step_cost(attention, rows, context)
        layer = known.bound(Cost(far.flops - near.flops, far.bytes - near.bytes))
        for backend in _NAMES:
            yield Figure(
                _named(backend, rows, context), None, "µs", shape=shape.name, predicted=1e6 * layer.seconds,
                basis=f"roofline bound of its FLOPs and cache bytes: {layer.basis}",
            )  # fmt: skip


def _named(backend: str, rows: int, context: int) -> str:
    return f"{_NAMES[backend]}, {rows} rows after {context}: a layer"


def run(bench: Bench) -> Iterator[Figure]:
    """Time the family's attention with tiny MLPs: a step after ``context`` tokens minus a step after one token."""
    rows, contexts = bench.size.attention_rows, bench.size.contexts
    names = list(_NAMES)
    if bench.rehearse or importlib.util.find_spec("flash_attn") is None:
        names.remove("flash")
        hidden = foreign.why_hidden(bench.journal, "flash_attn")
        why = f"it cannot be imported: {hidden}" if hidden else "not installed"
        yield Figure("flash-attn", None, note="needs a CUDA device" if bench.rehearse and not hidden else why)
    loaded = _narrow(bench)
    target = shapes.rehearsed(_FAMILY) if bench.rehearse else shapes.whole(_FAMILY)
    layers, shape = target.layers, target.name
    expected = predict.expected(bench, partial(_expected, target))
    bare: dict[str, float] = {}
    for name in names:
        try:
            bare[name] = _seconds(bench, loaded, name, rows, 1)
        except (
            Exception
        ) as error:  # a package built for another torch, or no compiler: the other backends are still timed
            traceback.print_exc()
            reason = (str(error).splitlines() or [""])[0]
            yield Figure(_NAMES[name], None, note=f"cannot be timed: {type(error).__name__}: {reason}", shape=shape)
    for context in contexts:
        taken: dict[str, float] = {}
        for name in bare:
            taken[name] = (_seconds(bench, loaded, name, rows, context) - bare[name]) / layers
            named = _named(name, rows, context)
            yield Figure(
                named, 1e6 * taken[name], "µs", shape=shape, note="minus the step after one token",
                **expected.fields(named),
            )  # fmt: skip
        for name in bare:
            if name != "triton" and taken.get("triton", 0) > 0:
                yield Figure(
                    f"tree attention over {_NAMES[name]}, {rows} rows after {context}", taken[name] / taken["triton"],
                    aim=">= 1" if name == "reference" else "", shape=shape,
                )  # fmt: skip
    if "triton" in bare:
        yield from _alone(bench, shape, rows)


def _seconds(bench: Bench, loaded: LoadedModel, backend: str, rows: int, context: int) -> float:
    """Time a step of ``rows`` rows after ``context`` cached tokens."""
    methods = plan_methods(["jacobi"], [f"jacobi.n={rows}"])
    # In a rehearsal Triton's interpreter replaces the kernels; its steps cannot be recorded.
    graphs = not bench.rehearse
    with sessions.session(bench, loaded, methods, capacity=context + 1, backend=backend, graphs=graphs) as opened:
        attention = None if not graphs else backend
        return sessions.step_times(opened.engine, rows, context, attention)[rows][0]


def _narrow(bench: Bench) -> LoadedModel:
    """Load the family with its attention and tiny MLPs."""
    values = shapes.config(shapes.REHEARSED if bench.rehearse else _FAMILY)
    file = bench.folder.resolve() / "attention-only.json"
    small = {"intermediate_size": _NARROW, "vocab_size": _NARROW, "eos_token_id": None, "bos_token_id": None}
    file.write_text(json.dumps({**values, **small}), encoding="utf-8")
    return load(f"config:{file}", dtype=bench.dtype, device=str(sessions.device(bench)))


def _alone(bench: Bench, shape: str, rows: int) -> Iterator[Figure]:
    """Time the kernel by itself, captured, with the L2 cache emptied before each replay."""
    if bench.rehearse:
        yield Figure("the kernel by itself", None, note="needs a CUDA device")
        return
    from benchmarks.kernels.attention_vs_sdpa import measure

    for found in measure(rows=rows):
        yield Figure(
            f"tree attention by itself over SDPA, {rows} rows after {found['context']}", found["speedup"],
            aim=">= 1", shape=shape,
            note=f"{1e3 * found['kernel_ms']:.1f} µs against {1e3 * found['sdpa_ms']:.1f} µs",
        )  # fmt: skip
    for few in (1, rows):
        (found,) = measure(rows=few, contexts=[1024])
        yield Figure(
            f"splits joined by the last of them over a second kernel, {few} rows after 1024",
            found["combined_ms"] / found["joined_ms"], shape=shape,
            note=f"{1e3 * found['joined_ms']:.1f} µs against {1e3 * found['combined_ms']:.1f} µs; "
            f"{'the first' if few == 1 else 'the second'} is used",
        )  # fmt: skip
