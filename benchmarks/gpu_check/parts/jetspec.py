"""Time a round of JetSpec, its drafter plus the target's step, at simulated acceptance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import median

from benchmarks.gpu_check import predict, sessions, shapes
from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.parts import each
from benchmarks.gpu_check.predict import Expected, Known
from benchmarks.gpu_check.records import Figure
from benchmarks.gpu_check.shapes import Shape
from specbench.decoding import Method
from specbench.models import LoadedModel
from specbench.planning.methods import plan_methods
from specbench.results.request_schema import PHASES
from specbench.results.schema import SimulatedAcceptance
from specbench.runner import Session

_FAMILY = shapes.WANTED[0]  # the shape of the published heads
_LAYERS, _TAPS = 5, 5  # of a head of the published shape
_EAGLE_ROWS, _EAGLE_DEPTH, _EAGLE_TOKENS = 60, 8, 32_000  # of EAGLE-3's defaults, and of the published heads' scorers


def predicted(known: Known) -> Iterator[Figure]:
    """Predict the time of rounds."""
    for shape in known.shapes([_FAMILY]):
        for budget in known.size.budgets:
            yield from _expected(shape, budget, known)
        yield from _expected_eagle(shape, known)


def _expected(shape: Shape, budget: int, known: Known) -> Iterator[Figure]:
    """Predict rounds; the draft head's FLOPs are neglected."""
    cost = known.cost(shape)
    read = _head_bytes(shape) + cost.head * cost.weight_bytes
    one, round_ = known.step(shape, 1), known.round_of_head(known.step(shape, budget), read)
    for mean in known.size.acceptance:
        for what, value, unit in (
            ("round", 1e3 * round_.seconds, "ms"),
            ("decoding", mean / round_.seconds, "tok/s"),
            ("round over AR step", round_.seconds / one.seconds, "ratio"),
            ("over AR", mean * one.seconds / round_.seconds, "ratio"),
        ):
            name = f"{_named(budget, mean)}: {what}"
            yield Figure(name, None, unit, shape=shape.name, predicted=value, basis=round_.basis)


def _expected_eagle(shape: Shape, known: Known) -> Iterator[Figure]:
    """Predict a round of EAGLE-3 at its defaults with a published head. The check does not measure it."""
    values = shapes.values_of(shape)
    hidden = values["hidden_size"]
    head = values.get("head_dim") or hidden // values["num_attention_heads"]
    queries, keys = (values[name] * head for name in ("num_attention_heads", "num_key_value_heads"))
    # Its only layer also reads a token's embedding, and its output layer has only the most common tokens.
    weights = 2 * hidden * (queries + 2 * keys) + queries * hidden + 3 * hidden * values["intermediate_size"]
    level = 2 * (weights + _EAGLE_TOKENS * hidden)
    step, one = known.step(shape, min(_EAGLE_ROWS, known.size.rows)), known.step(shape, 1)
    round_ = known.round_of_head(step, _EAGLE_DEPTH * level, predict.EAGLE_NODES)
    for what, value, unit in (
        ("round", 1e3 * round_.seconds, "ms"),
        ("round over AR step", round_.seconds / one.seconds, "ratio"),
    ):
        yield Figure(
            f"EAGLE-3, {_EAGLE_ROWS} rows, depth {_EAGLE_DEPTH}: {what}", None, unit, shape=shape.name, predicted=value,
            basis=round_.basis,
        )  # fmt: skip


def _named(budget: int, mean: float) -> str:
    return f"JetSpec, {budget} rows, {mean:g} tokens a round"


def run(bench: Bench) -> Iterator[Figure]:
    """Measure trees of 64 and 128 rows with an untrained head of the published shape; phases in a second pass."""
    size = bench.size
    answer = int(max(size.acceptance) * _rounds(bench))
    cells = size.context + answer + 4 * max(size.budgets)
    shape, loaded, left_out = sessions.model_of(bench, _FAMILY, cells, extra_bytes=_head_bytes(_target(bench)))
    yield from left_out
    if shape is None or loaded is None:
        return
    for trace in (False, True):
        yield from each(size.budgets, partial(_budget, bench, shape, loaded, trace))


def _budget(bench: Bench, shape: Shape, loaded: LoadedModel, trace: bool, budget: int) -> Iterator[Figure]:
    size, most = bench.size, max(bench.size.acceptance)
    methods = plan_methods(["jetspec"], ["jetspec.head=random", f"jetspec.budget={budget}"])
    labels = {f"jetspec at {mean:g}": mean for mean in size.acceptance}
    simulated = {label: SimulatedAcceptance(mean=mean, spread=0.0) for label, mean in labels.items()}
    capacity = size.context + int(most * _rounds(bench)) + budget
    with sessions.session(bench, loaded, methods, capacity=capacity, trace=trace, simulated=simulated) as opened:
        ar, head = opened.methods
        # One head serves all of them; only the simulated acceptance differs.
        arms = {mean: replace(head, label=label) for label, mean in labels.items()}
        opened.capture(size.context, [ar, *arms.values()])
        prompt = [sessions.prompt(loaded, size.context)]
        sessions.decode(opened, arms[most], prompt, int(most) * 2)  # warm-up of the head
        if trace:
            for mean, arm in arms.items():
                yield from _phases(bench, shape, opened, arm, mean, budget)
            return
        step = sessions.seconds_a_step(sessions.decode(opened, ar, prompt, _rounds(bench)))
        expected = predict.expected(bench, partial(_expected, shape, budget))
        for mean, arm in arms.items():
            yield from _round(bench, shape, opened, arm, mean, budget, step, expected)


def _round(
    bench: Bench, shape: Shape, opened: Session, arm: Method, mean: float, budget: int, step: float,
    expected: Expected,
) -> Iterator[Figure]:  # fmt: skip
    prompt = [sessions.prompt(opened.model, bench.size.context)]
    records = sessions.decode(opened, arm, prompt, 1 + int(mean * _rounds(bench)))
    (record,) = records
    seconds = sessions.seconds_a_step(records)
    rows = record.tree_rows / record.target_forwards
    tpf = (record.output_tokens - 1) / record.target_forwards
    name = _named(budget, mean)
    note = f"{record.target_forwards} rounds of {rows:.0f} rows, {tpf:.3g} tokens each, host included"
    yield Figure(
        f"{name}: round", 1e3 * seconds, "ms", note=note, shape=shape.name, **expected.fields(f"{name}: round"),
    )  # fmt: skip
    yield Figure(
        f"{name}: decoding", sessions.tokens_a_second(records), "tok/s", note=note, shape=shape.name,
        **expected.fields(f"{name}: decoding"),
    )  # fmt: skip
    yield Figure(
        f"{name}: round over AR step", seconds / step, note=f"AR in the same session: {1e3 * step:.4g} ms",
        shape=shape.name, key="jetspec", **expected.fields(f"{name}: round over AR step"),
    )  # fmt: skip
    yield Figure(
        f"{name}: over AR", tpf * step / seconds, note="simulated acceptance", shape=shape.name, key="jetspec",
        **expected.fields(f"{name}: over AR"),
    )  # fmt: skip


def _phases(bench: Bench, shape: Shape, opened: Session, arm: Method, mean: float, budget: int) -> Iterator[Figure]:
    prompt = [sessions.prompt(opened.model, bench.size.context)]
    (record,) = sessions.decode(opened, arm, prompt, 1 + int(mean * _rounds(bench)))
    assert record.phases_s is not None
    for phase in PHASES:
        spent = record.phases_s.get(phase)
        if spent:
            yield Figure(
                f"{_named(budget, mean)}: {phase}", 1e3 * median(spent), "ms",
                note=f"median of {len(spent)} rounds, with a device synchronisation after each phase", shape=shape.name,
            )  # fmt: skip


def _target(bench: Bench) -> Shape:
    """Return the target's shape before its number of layers is limited by memory."""
    return shapes.rehearsed(_FAMILY) if bench.rehearse else shapes.whole(_FAMILY)


def _head_bytes(target: Shape) -> int:
    """Bytes of a head of the published shape: layers as wide as the target's, and the projection of its taps."""
    values = shapes.values_of(target)
    tables = {**values, "vocab_size": 0}
    return shapes.weight_bytes(tables, _LAYERS) + 2 * _TAPS * values["hidden_size"] ** 2


def _rounds(bench: Bench) -> int:
    """Number of rounds of an answer."""
    return bench.size.tokens // 4
