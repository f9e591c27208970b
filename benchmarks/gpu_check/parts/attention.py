"""Attention: the tree kernel against torch's SDPA with a dense mask, and against flash-attn for chains."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator

from benchmarks.gpu_check import sessions, shapes
from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.records import Figure
from specbench.models import LoadedModel, load
from specbench.runner.methods import plan_methods

_FAMILY = shapes.WANTED[1]
_NARROW = 256  # width of the MLPs, and tokens of the vocabulary: next to nothing beside attention
_NAMES = {"triton": "tree attention", "reference": "SDPA with a dense mask", "flash": "flash-attn of a chain"}


def run(bench: Bench) -> Iterator[Figure]:
    """A model of the family's attention without its MLPs: a step behind a context, less the step behind one token."""
    rows, contexts = bench.size.attention_rows, bench.size.contexts
    names = list(_NAMES)
    if bench.rehearse or importlib.util.find_spec("flash_attn") is None:
        names.remove("flash")
        yield Figure("flash-attn", None, note="it is not installed" if not bench.rehearse else "it needs a CUDA device")
    loaded = _narrow(bench)
    values = shapes.config(shapes.REHEARSED if bench.rehearse else _FAMILY)
    layers, cell = values["num_hidden_layers"], shapes.cached_bytes(values, 1)
    ceilings, shape = bench.ceilings, shapes.rehearsed(_FAMILY).name if bench.rehearse else _FAMILY
    bare = {name: _seconds(bench, loaded, name, rows, 1) for name in names}
    for context in contexts:
        taken = {}
        for name in names:
            taken[name] = (_seconds(bench, loaded, name, rows, context) - bare[name]) / layers
            yield Figure(
                f"{_NAMES[name]}, {rows} rows behind {context}: a layer", 1e6 * taken[name], "µs", shape=shape,
                note="less the step behind one token",
                predicted=1e6 * context * cell / ceilings.bytes_per_s if ceilings else None,
                basis="keys and values of the cache / bandwidth",
            )  # fmt: skip
        for name in names[1:]:
            if taken["triton"] > 0:
                yield Figure(
                    f"tree attention over {_NAMES[name]}, {rows} rows behind {context}", taken[name] / taken["triton"],
                    aim=">= 1" if name == "reference" else "", shape=shape,
                )  # fmt: skip
    yield from _alone(bench, shape, rows)


def _seconds(bench: Bench, loaded: LoadedModel, backend: str, rows: int, context: int) -> float:
    """A step of so many rows behind ``context`` cached tokens."""
    methods = plan_methods(["jacobi"], [f"jacobi.n={rows}"])
    # Triton's interpreter, which stands in for the kernels in a rehearsal, does nothing that could be recorded.
    graphs = not bench.rehearse
    with sessions.session(bench, loaded, methods, capacity=context + 1, backend=backend, graphs=graphs) as opened:
        attention = None if not graphs else backend
        return sessions.step_times(opened.engine, rows, context, attention)[rows][0]


def _narrow(bench: Bench) -> LoadedModel:
    """The family with its attention and with next to no MLP."""
    values = shapes.config(shapes.REHEARSED if bench.rehearse else _FAMILY)
    file = bench.folder.resolve() / "attention-only.json"
    small = {"intermediate_size": _NARROW, "vocab_size": _NARROW, "eos_token_id": None, "bos_token_id": None}
    file.write_text(json.dumps({**values, **small}), encoding="utf-8")
    return load(f"config:{file}", dtype=sessions.dtype(bench), device=str(sessions.device(bench)))


def _alone(bench: Bench, shape: str, rows: int) -> Iterator[Figure]:
    """The kernel by itself, captured, with the cache of the device emptied before each replay."""
    if bench.rehearse:
        yield Figure("the kernel by itself", None, note="it needs a CUDA device")
        return
    from benchmarks.kernels.attention_vs_sdpa import measure

    for found in measure(rows=rows):
        yield Figure(
            f"tree attention by itself over SDPA, {rows} rows behind {found['context']}", found["speedup"],
            aim=">= 1", shape=shape,
            note=f"{1e3 * found['kernel_ms']:.1f} µs against {1e3 * found['sdpa_ms']:.1f} µs",
        )  # fmt: skip
    for few in (1, rows):
        (found,) = measure(rows=few, contexts=[1024])
        yield Figure(
            f"splits joined by the last of them over a second kernel, {few} rows behind 1024",
            found["combined_ms"] / found["joined_ms"], shape=shape,
            note=f"{1e3 * found['joined_ms']:.1f} µs against {1e3 * found['combined_ms']:.1f} µs; "
            f"{'the first' if few == 1 else 'the second'} is used",
        )  # fmt: skip
