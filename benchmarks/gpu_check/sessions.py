"""Load models, open sessions on them and read their times, for all parts."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext

import torch

from benchmarks.gpu_check import shapes
from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.records import Figure
from benchmarks.gpu_check.shapes import Shape
from specbench.decoding import Method
from specbench.engine import Engine
from specbench.models import LoadedModel, load
from specbench.results import RequestRecord
from specbench.results.schema import SimulatedAcceptance
from specbench.runner import Request, Session, StopRule
from specbench.runner.session import Kernels

_SOME_TOKENS = 1000  # prompts are sampled from the first ids of the vocabulary


def device(bench: Bench) -> torch.device:
    """Device of the parts."""
    return torch.device("cpu" if bench.rehearse else "cuda")


def free_bytes(bench: Bench) -> int:
    """Free memory of the device (maybe a slice of a GPU), in bytes."""
    return 1 << 40 if bench.rehearse else int(torch.cuda.mem_get_info()[0])


def model_of(
    bench: Bench, family: str, cells: int, extra_bytes: int = 0
) -> tuple[Shape | None, LoadedModel | None, list[Figure]]:
    """Load a family with dummy weights and as many layers as fit.

    Args:
        bench: bench of the part.
        family: a name of :data:`shapes.WANTED`.
        cells: tokens that the cache will hold.
        extra_bytes: memory needed for other things on the device.

    Returns:
        (shape, loaded model, figures on what was left out); shape and model are None if nothing fits.
    """
    free_memory()  # release what an earlier model has left
    shape: Shape | None
    if bench.rehearse:
        shape, why = shapes.rehearsed(family), ""
    else:
        shape, why = shapes.fitting(family, free_bytes(bench), cells, bench.folder, extra_bytes)
    left_out = [Figure(f"{family} as a whole", None, note=why)] if why else []
    loaded = load(shape.spec, dtype=bench.dtype, device=str(device(bench))) if shape else None
    return shape, loaded, left_out


def session(
    bench: Bench,
    loaded: LoadedModel,
    methods: Sequence[Method],
    *,
    capacity: int,
    slots: int = 1,
    graphs: bool = True,
    compile: bool = False,
    native: bool | None = None,
    backend: str = "auto",
    trace: bool = False,
    simulated: Mapping[str, SimulatedAcceptance] | None = None,
    settle: bool = False,
) -> Session:
    """Open a session; in a rehearsal its steps are recorded instead of captured.

    Choosing kernels for products of few rows takes half a minute. One part does it and hands its choices on; without
    them the library computes the products.

    Args:
        bench: bench of the part.
        loaded, methods, capacity, slots, trace, simulated: see :class:`specbench.runner.Session`.
        graphs: capture steps. A model that cannot be captured runs eagerly, and the engine's report has the reason; in
            a rehearsal it is an error.
        compile, native, backend: options of the engine.
        settle: choose the kernels here, when the engine is prepared.
    """
    from benchmarks.gpu_check import recorder

    free_memory()  # release what an earlier session has captured
    wanted = (True if bench.rehearse else None) if graphs else False
    with recorder.installed() if bench.rehearse else nullcontext():
        opened = Session(
            loaded, methods, capacity=capacity, slots=slots, kernels=Kernels(backend, wanted, compile, native),
            trace=trace, simulated=simulated,
        )  # fmt: skip
    if not settle:
        opened.engine.multiply_as(bench.journal.last("products", model=loaded.spec.name).get("choices", ()))
    return opened


def hand_on_products(bench: Bench, opened: Session) -> None:
    """Record the kernels chosen for a model's products of few rows, for later parts."""
    choices = opened.engine.report().get("products", ())
    bench.journal.append("products", model=opened.model.spec.name, choices=choices)


def prompt(loaded: LoadedModel, length: int, seed: int = 0) -> list[int]:
    """Return random tokens; equal arguments give equal tokens."""
    rng = random.Random(seed)
    return [rng.randrange(min(loaded.vocab_size, _SOME_TOKENS)) for _ in range(length)]


def decode(
    opened: Session, method: Method, prompts: Sequence[Sequence[int]], tokens: int, together: int = 1
) -> list[RequestRecord]:
    """Decode answers of exactly ``tokens`` tokens to each prompt, without stop tokens."""
    rule = StopRule(frozenset(), (), tokens, str)
    requests = [Request(f"dummy/{at}", 0, ids, rule) for at, ids in enumerate(prompts)]
    return list(opened.decode(method, requests, together=together))


def seconds_a_step(records: Sequence[RequestRecord]) -> float:
    """Mean seconds per forward after the prefill, host work included."""
    return sum(record.decode_share_s for record in records) / sum(record.target_forwards for record in records)


def tokens_a_second(records: Sequence[RequestRecord]) -> float:
    """Decoded tokens per second, without the prefill and its token."""
    return sum(record.output_tokens - 1 for record in records) / sum(record.decode_share_s for record in records)


def step_times(engine: Engine, rows: int, context: int, attention: str | None = None) -> dict[int, tuple[float, int]]:
    """Return rows -> (seconds of a step of one sequence, rows that it is padded to). No slot may be in use.

    Args:
        engine: engine of a session.
        rows: rows of the widest step.
        context: cached tokens; an engine without captures uses its own.
        attention: attention backend, if the engine has several; default is that of the widest steps.
    """
    engine.prepare(rows, context=context)
    curves = [one for one in engine.report().get("steps", ()) if not one["top_k"] and not one["taps"]]
    if attention is not None:
        curves = [one for one in curves if one["attention"] == attention]
    if not curves:
        return {count: (seconds, count) for count, seconds in engine.step_seconds(rows)}
    # Short tiles have the fewest rows and tall ones the most; where both were timed, tall ones are used.
    return {
        count: (curve["step_s"][curve["padded_to"][count]], curve["padded_to"][count])
        for curve in sorted(curves, key=lambda one: min(one["step_s"]))
        for count in curve["step_s"]
    }


def captures(shape: str, engine: Engine) -> Iterator[Figure]:
    """Yield figures on captured graphs (number, time, memory) or the reason for none, and on fused layers."""
    report = engine.report()
    if "fusions" in report:
        missing = "; ".join(f"{name}: {why}" for name, why in report["not_fused"].items())
        yield Figure("fusions of layers", len(report["fusions"]), "of 3", ">= 3", missing, shape=shape)
    elif why := report.get("why_not_fused"):
        yield Figure("fusions of layers", None, note=why, shape=shape)
    if not report["graphs"]:
        yield Figure("graphs captured", 0, "graphs", note=report.get("why_eager", ""), shape=shape)
        return
    note = f"attention {report['attention']}{', ' + report['why'] if report['why'] else ''}"
    yield Figure("graphs captured", report["graphs"], "graphs", note=note, shape=shape)
    yield Figure("time to capture them", report["capture_s"], "s", shape=shape)
    yield Figure("memory they hold", report["capture_bytes"] / 2**20, "MiB", shape=shape)


def free_memory() -> None:
    """Release cached memory of the device between models."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
