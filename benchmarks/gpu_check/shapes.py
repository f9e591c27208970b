"""The step of a large model, on dummy weights of its real shapes: plain decoding, wide trees, drafting, concurrency."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

from benchmarks.gpu_check.records import Figure
from benchmarks.vs_generate import by_generate
from specbench.decoding import Method, TokenTree
from specbench.engine import Engine
from specbench.hardware.roofline import step_cost
from specbench.models import LoadedModel, load
from specbench.profiling.shape import shape_of
from specbench.results import RequestRecord
from specbench.results.schema import HOST_PHASES, SimulatedAcceptance
from specbench.runner import Request, Session, StopRule
from specbench.runner.methods import plan_methods

#: Step time over a one-row step that a step of so many rows may take.
ROW_AIMS = {16: 1.05, 64: 1.15, 128: 1.3, 256: 1.9}
ACCEPTANCE = 4.0  # tokens a forward, where acceptance is simulated


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        context: prompt tokens.
        steps: timed steps of each kind.
        concurrency: numbers of sequences.
        rows: row counts, one first.
    """

    context: int = 1024
    steps: int = 50
    concurrency: Sequence[int] = (1, 4, 16, 64)
    rows: Sequence[int] = (1, *ROW_AIMS)


def baseline(
    spec: str, bandwidth: float, size: Size, dtype: str, compile: bool, brief: bool = False
) -> Iterator[Figure]:
    """Plain decoding against the bus and against ``generate``, and the step time of wide trees.

    Args:
        spec: a ``config:`` model.
        bandwidth: measured bytes per second of a copy.
        size: how much.
        dtype: of the weights.
        compile: run the layers through torch.compile.
        brief: only plain decoding, to compare with.
    """
    loaded = load(spec, dtype=dtype)
    model = loaded.model
    if brief:
        size = replace(size, rows=size.rows[:1])
    room = size.steps * (len(size.rows) + 1)
    engine = Engine(model, capacity=size.context + room, max_rows=max(size.rows), compile=compile)
    try:
        engine.prepare(max(size.rows), context=size.context)
        how = "compiled" if compile else "as it is"
        yield from _captures(f"{spec} {how}", engine)
        taken = _row_times(engine, loaded, size)
        read = step_cost(shape_of(engine), 1, size.context).bytes
    finally:
        engine.close()
    note = f"median of {size.steps} steps, {dtype}, context {size.context}"
    step = median(taken[1])
    yield Figure(f"{spec} {how}: AR step", 1e3 * step, "ms", note=note)
    if brief:
        yield Figure(f"{spec} {how}: AR, share of the copy bandwidth", read / step / bandwidth, "share", "", note)
        return
    yield Figure(f"{spec}: AR, share of the copy bandwidth", read / step / bandwidth, "share", ">= 0.8", note)
    for rows in size.rows[1:]:
        # pairs of neighbouring steps: the ratio does not see a clock that drifts
        ratio = median(many / one for many, one in zip(taken[rows], taken[1], strict=True))
        aim = f"<= {ROW_AIMS[rows]}" if rows in ROW_AIMS else ""
        yield Figure(f"{spec}: step of {rows} rows over one row", ratio, "ratio", aim, note)
    prompt = _prompt(loaded, size.context)
    theirs = [by_generate(model, prompt, size.steps) for _ in range(3)][1:]  # the first is warm-up
    each = min(one.seconds / one.tokens for one in theirs)
    how = f"{size.steps} tokens, best of two, {model.config._attn_implementation} attention"
    yield Figure(f"{spec}: generate, per token", 1e3 * each, "ms", note=how)
    yield Figure(f"{spec}: AR over transformers generate", each / step, "ratio", ">= 4", how)


def drafting(spec: str, size: Size, dtype: str, settings: Sequence[tuple[str, Sequence[str]]]) -> Iterator[Figure]:
    """What methods add to the target's forward, at a simulated acceptance.

    Args:
        spec, size, dtype: as for :func:`baseline`.
        settings: (method, its ``--set`` options).
    """
    loaded = load(spec, dtype=dtype)
    for name, options in settings:
        methods = [one for one in plan_methods([name], options) if one.name == name]
        with _session(loaded, methods, 1, size, name=spec, trace=True) as session:
            session.capture(size.context)
            (record,) = _decode(session, session.methods[0], size)
            late = _late(session.engine)
        assert record.phases_s is not None
        steps = [sum(parts) for parts in zip(*record.phases_s.values(), strict=True)]
        host = [sum(parts) for parts in zip(*(record.phases_s[phase] for phase in HOST_PHASES), strict=True)]
        share = median(h / step for h, step in zip(host, steps, strict=True))
        label = " ".join([name, *options])
        rows = record.tree_rows / record.target_forwards
        note = f"median of {len(steps)} steps, {rows:.0f} rows a step, {late} late captures"
        yield Figure(f"{spec}: {label}, host share of a step", share, "share", "<= 0.1", note)
        yield Figure(f"{spec}: {label}, step", 1e3 * median(steps), "ms", note=note)


def concurrency(spec: str, size: Size, dtype: str, settings: Sequence[str]) -> Iterator[Figure]:
    """Throughput of AR and of ``jf`` at a simulated acceptance, as more sequences are stepped together.

    Args:
        spec, size, dtype: as for :func:`baseline`.
        settings: ``--set`` options of jf.
    """
    loaded = load(spec, dtype=dtype)
    for count in size.concurrency:
        with _session(loaded, plan_methods(["jf"], settings), count, size) as session:
            speeds = []
            for method in session.methods:
                _decode(session, method, size)  # captures what it needs
                before = _late(session.engine)
                records = _decode(session, method, size)
                seconds = sum(record.decode_share_s for record in records)
                speeds.append(sum(record.output_tokens - 1 for record in records) / seconds)
                note = f"{count} × {_tokens(size)} tokens, {_late(session.engine) - before} captures while timed"
                yield Figure(f"{spec}: {method.name} at concurrency {count}", speeds[-1], "tok/s", note=note)
            yield Figure(f"{spec}: jf (acceptance {ACCEPTANCE:g}) over AR, concurrency {count}", speeds[1] / speeds[0])


def _row_times(engine: Engine, loaded: LoadedModel, size: Size) -> dict[int, list[float]]:
    """Rows -> seconds of each step, host included; the row counts take turns."""
    slot = engine.alloc()
    root = engine.prefill(slot, _prompt(loaded, size.context)).emitted[-1]
    taken: dict[int, list[float]] = {rows: [] for rows in size.rows}
    for _ in range(size.steps):
        for rows in size.rows:
            tree = TokenTree.chain([root, *range(1, rows)])
            started = time.perf_counter()
            root = engine.step({slot: tree})[slot].emitted[-1]
            taken[rows].append(time.perf_counter() - started)
            if engine.capacity - engine.length(slot) < max(size.rows):  # guesses were right by chance
                engine.free(slot)
                slot = engine.alloc()
                root = engine.prefill(slot, _prompt(loaded, size.context)).emitted[-1]
    engine.free(slot)
    return taken


def _session(loaded: LoadedModel, methods: Sequence[Method], count: int, size: Size, **how: Any) -> Session:
    """``count`` sequences stepped together; acceptance is simulated where a method drafts."""
    asked = SimulatedAcceptance(mean=ACCEPTANCE, spread=0.0)
    simulated = {method.label: asked for method in methods if method.name != "ar"}
    return Session(loaded, methods, capacity=size.context + _tokens(size), slots=count, simulated=simulated, **how)


def _decode(session: Session, method: Method, size: Size) -> list[RequestRecord]:
    """A request for every slot, all at once."""
    rule = StopRule(frozenset(), (), _tokens(size), str)
    prompts = [_prompt(session.model, size.context, at) for at in range(session.engine.slots)]
    return list(session.decode(method, [Request(f"dummy/{at}", 0, ids, rule) for at, ids in enumerate(prompts)]))


def _tokens(size: Size) -> int:
    return int(ACCEPTANCE * size.steps)


def _prompt(loaded: LoadedModel, length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(min(loaded.vocab_size, 1000)) for _ in range(length)]


def _captures(spec: str, engine: Engine) -> Iterator[Figure]:
    report = engine.report()
    if not report["graphs"]:
        yield Figure(f"{spec}: graphs captured", 0, "graphs", note=report.get("why_eager", ""))
        return
    note = f"attention {report['attention']}: {report['why'] or 'no other'}"
    yield Figure(f"{spec}: graphs captured", report["graphs"], "graphs", note=note)
    yield Figure(f"{spec}: time to capture them", report["capture_s"], "s")
    yield Figure(f"{spec}: memory they hold", report["capture_bytes"] / 2**20, "MiB")


def _late(engine: Engine) -> int:
    found: int = engine.report().get("late_captures", 0)
    return found


def free_memory() -> None:
    """Between models."""
    import gc

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
