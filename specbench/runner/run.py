"""A run from a plan to a finished folder: prompts, warm-up, order, requests, losslessness, verdicts, summary."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, Protocol

import torch

from specbench.common import UsageError
from specbench.decoding import Context
from specbench.engine import Engine, Sampling, products
from specbench.evals import Tenths, score_in_child
from specbench.hardware import GpuMeter, Nvml, environment
from specbench.models import LoadedModel, load
from specbench.results import BASELINE, RequestRecord, RunConfig, RunFolder, grades, summarise
from specbench.results.schema import BASE, GRAPHS, request_key
from specbench.results.verdicts import read_metrics
from specbench.runner import lossless
from specbench.runner.loop import Request, Runner
from specbench.runner.order import Order
from specbench.runner.plan import Plan, TaskPlan
from specbench.runner.prompts import Prepared, prepare
from specbench.runner.simulate import Acceptance
from specbench.runner.stop import StopRule
from specbench.runner.target import target_of

# Warm-up text of the tool's own: never a prompt of any task, so no timed prompt has been seen before.
_WARM_UP = (
    "A harbour pilot boards each ship a mile before the breakwater. She asks for the draught, the wind and the state "
    "of the engine, in that order, and writes the three numbers on the back of her hand. "
)
_WARM_UP_TOKENS = 24


class Progress(Protocol):
    """Where a run reports; the CLI draws it, tests and libraries pass :class:`Silent`."""

    def start(self, folder: RunFolder, done: int, total: int, resumed: bool) -> None: ...
    def phase(self, text: str) -> None: ...
    def ready(self, engine: Mapping[str, Any]) -> None: ...
    def request(self, record: RequestRecord) -> None: ...


class Silent:
    """No progress."""

    def start(self, folder: RunFolder, done: int, total: int, resumed: bool) -> None: ...
    def phase(self, text: str) -> None: ...
    def ready(self, engine: Mapping[str, Any]) -> None: ...
    def request(self, record: RequestRecord) -> None: ...


def sampling_of(plan: Plan, temperature: float | None = None) -> Sampling:
    """The engine's sampling for a plan, or for the prompts of a task that prescribes another temperature.

    Raises:
        UsageError: a value outside its range.
    """
    chosen = plan.sampling.model_dump()
    try:
        return Sampling(**(chosen if temperature is None else {**chosen, "temperature": temperature}))
    except ValueError as error:
        raise UsageError(str(error)) from error


def make_engine(plan: Plan, model: LoadedModel, longest: int) -> Engine:
    """An engine with room for prompts of ``longest`` tokens (answer included) and the plan's slots and trees."""
    return Engine(
        model.model,
        slots=plan.concurrency,
        capacity=longest,
        max_rows=plan.max_rows,
        sampling=sampling_of(plan),
        **engine_options(plan),
    )


def engine_options(plan: Plan) -> dict[str, Any]:
    """What a plan says of kernels, as arguments of the engine."""
    return {"backend": plan.attention, "graphs": GRAPHS[plan.graphs], "compile": plan.compile}


def ready(plan: Plan, model: LoadedModel, engine: Engine) -> Plan:
    """The plan with what its methods bring: draft models and heads, loaded for this target.

    Raises:
        SpecbenchError: one that cannot be had, or that does not go with the target.
    """

    target = target_of(
        model,
        engine,
        name=plan.model,
        load=lambda spec: load(
            spec,
            dtype=model.spec.dtype,
            device=str(model.model.device),
            trust_remote_code=plan.trust_remote_code,
        ),
        attention=plan.attention,
        options=engine_options(plan),
    )
    return replace(plan, methods=tuple(method.ready(target) for method in plan.methods))


def make_runner(plan: Plan, model: LoadedModel, engine: Engine, gpu: GpuMeter | None = None) -> Runner:
    """A runner whose decoders draw drafts from (seed, prompt, repeat): repeatable, and alike for equal methods."""

    def context(label: str, request: Request) -> Context:
        turn = f"/{request.turn}" if request.turn > 1 else ""
        rng = random.Random(f"{plan.sampling.seed}/{request.prompt_id}/{request.repeat}{turn}")
        return Context(model.vocab_size, model.pad_id, rng)

    def simulate(label: str, request: Request) -> Acceptance | None:
        asked = plan.simulated.get(label)
        seed = f"{plan.sampling.seed}/{label}/{request.prompt_id}/{request.repeat}/{request.turn}"
        return Acceptance.of(asked, seed, model.vocab_size, model.stop_ids) if asked else None

    return Runner(engine, context, plan.concurrency, trace=plan.trace, gpu=gpu, simulate=simulate)


def execute(
    plan: Plan, model: LoadedModel, prepared: Prepared, progress: Progress, base: LoadedModel | None = None
) -> RunFolder:
    """Runs one task to its end, going on in an unfinished folder of the same configuration where there is one.

    Args:
        base: what the model was made from, where the plan says that there is one.

    Raises:
        SpecbenchError: what went wrong, in one line. Finished requests are kept in any case.
    """
    captured = environment.capture(str(model.model.device))
    # Before the folder: what the engine or a method refuses must leave nothing behind.
    engine = make_engine(plan, model, prepared.longest + prepared.budget)
    gpu = open_gpu(model.model.device)
    base_engine = None
    try:
        plan = ready(plan, model, engine)
        if base is not None:
            base_engine = make_engine(replace(plan, methods=plan.methods[:1]), base, prepared.longest + prepared.budget)
        config = config_of(plan, model, prepared, captured, base)
        folder, resumed = _open_folder(plan, prepared, config, captured)
        with folder:
            meter = GpuMeter(gpu.look) if gpu else None
            runner = make_runner(plan, model, engine, meter)
            arms = [Arm(engine, runner, plan)]
            if base is not None and base_engine is not None:
                arms = [replace(arms[0], plan=_without_base(plan))]
                only = replace(plan, methods=tuple(m for m in plan.methods if m.label == BASE))
                arms.append(Arm(base_engine, make_runner(plan, base, base_engine, meter), only))
            records = _decode(plan, model, arms, prepared, folder, progress, resumed)
            graded, verdicts = None, None
            if not plan.simulated:  # where it is, the text is a lottery's: neither AR's nor an answer
                progress.phase("checking losslessness")
                graded = grade(_without_base(plan), engine, prepared, [r for r in records if r.method != BASE])
                if config.task.metric:
                    verdicts = score_in_child(folder.path, plan.data_dir, Tenths(progress.phase))
            metrics = read_metrics(folder.path)
            folder.finish(summarise(config, records, verdicts, graded, metrics, engine.report()))
    finally:
        engine.close()
        if base_engine:
            base_engine.close()
        if gpu:
            gpu.close()
    return folder


def _without_base(plan: Plan) -> Plan:
    return replace(plan, methods=tuple(method for method in plan.methods if method.label != BASE))


def config_of(
    plan: Plan,
    model: LoadedModel,
    prepared: Prepared,
    captured: environment.Environment,
    base: LoadedModel | None = None,
) -> RunConfig:
    """Everything that decides what a run measures."""
    return RunConfig(
        model=model.spec,
        base=base.spec if base else None,
        task=prepared.spec,
        methods=plan.specs(),
        sampling=plan.sampling,
        max_new_tokens=prepared.budget,
        repeats=plan.repeats,
        concurrency=plan.concurrency,
        attention=plan.attention,
        graphs=plan.graphs,
        compile=plan.compile,
        linears=products.kind_for(model.model),
        simulated=dict(plan.simulated),
        order_seed=plan.sampling.seed,
        trace=plan.trace,
        identity=environment.fingerprint(captured),
    )


def open_gpu(device: torch.device) -> Nvml | None:
    """The GPU to look at while requests run; None for a CPU, and where NVML has no such GPU."""
    if device.type != "cuda":
        return None
    return Nvml.open(str(getattr(torch.cuda.get_device_properties(device), "uuid", "")))


def _open_folder(
    plan: Plan, prepared: Prepared, config: RunConfig, captured: environment.Environment
) -> tuple[RunFolder, bool]:
    """The unfinished folder of this configuration, or a new one; and whether it is the former."""
    digest = config.digest()
    folder = RunFolder.find_unfinished(plan.out, digest)
    if folder is not None:
        return folder, True
    stem = f"{'+'.join(m.label for m in plan.methods)}-{prepared.spec.name}"
    run = {
        "created_utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **config.model_dump(mode="json"),
        "environment": captured.model_dump(mode="json"),
    }
    return RunFolder.create(plan.out, stem, digest, run), False


@dataclass(frozen=True)
class Arm:
    """An engine with the methods that run on it; a run has a second one for the base of a fine-tuned model."""

    engine: Engine
    runner: Runner
    plan: Plan


def _decode(
    plan: Plan,
    model: LoadedModel,
    arms: Sequence[Arm],
    prepared: Prepared,
    folder: RunFolder,
    progress: Progress,
    resumed: bool,
) -> list[RequestRecord]:
    records = [record.untraced() for record in folder.records()]
    order = Order(plan, prepared, {record.key: record.text for record in records})
    progress.start(folder, len(records), order.total, resumed)
    if len(records) < order.total:
        progress.phase("warming up")
        for arm in arms:
            warm_up(arm.plan, model, prepared, arm.engine, arm.runner)
        progress.ready(arms[0].engine.report())
    arm_of = {method.label: arm for arm in arms for method in arm.plan.methods}
    first = 1 + max((record.segment for record in records), default=-1)
    for number, (method, requests) in enumerate(order.stretches(), first):
        arm = arm_of[method.label]
        arm.engine.sampling = sampling_of(plan, requests[0].temperature)
        for record in arm.runner.segment(method, requests, number):
            folder.log.append(record.model_dump(mode="json"))
            records.append(record.untraced())
            order.add(record)
            progress.request(record)
    return records


def warm_up(
    plan: Plan, model: LoadedModel, prepared: Prepared, engine: Engine, runner: Runner, tokens: int = _WARM_UP_TOKENS
) -> None:
    """Captures every graph, then runs every method on text of the tool's own, as long as the longest prompt.

    Args:
        tokens: of an answer to it.
    """
    text = model.tokenizer(_WARM_UP * (1 + prepared.longest // 32))["input_ids"][: prepared.longest]
    assert all(list(request.ids) != text for request in prepared.requests()), "a warm-up prompt is a timed prompt"
    rule = StopRule(frozenset(), (), min(tokens, prepared.budget), model.decode)
    requests = [Request(f"warm-up/{slot}", 0, text, rule) for slot in range(plan.concurrency)]
    warm: set[str] = set()
    for temperature in {prompt.temperature for prompt in prepared.prompts.values()}:
        engine.sampling = sampling_of(plan, temperature)
        for method in plan.methods:
            simulated = method.label in plan.simulated
            engine.prepare(
                method.max_rows, top_k=method.top_k, taps=method.taps, forced=simulated, context=prepared.longest
            )
        for method in plan.methods:
            # What a method brings may have graphs of its own for each way of sampling.
            if method.label not in warm or method.shared is not None:
                warm.add(method.label)
                for _ in runner.segment(method, requests):
                    pass


def grade(
    plan: Plan, engine: Engine, prepared: Prepared, records: Sequence[RequestRecord]
) -> Mapping[str, dict[str, Any]]:
    """Every method's answers against AR's, where both were asked the same: a later turn holds the answers before it.

    Sampled answers of a method with noise of its own are left out: they say nothing one by one.
    """
    own = {method.label for method in plan.methods if method.own_noise}
    order = Order(plan, prepared, {record.key: record.text for record in records})
    # Repeats share seed and prompt, so each must give the same ids as the first AR pass; all of them are graded.
    reference: dict[tuple[str, int], RequestRecord] = {}
    for record in records:
        if record.method == BASELINE:
            reference.setdefault((record.prompt_id, record.turn), record)
    temperatures: dict[float | None, list[RequestRecord]] = defaultdict(list)
    for record in records:
        temperatures[prepared.prompts[record.prompt_id].temperature].append(record)
    tallies: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for temperature, group in temperatures.items():
        engine.sampling = sampling_of(plan, temperature)
        graded: dict[str, dict[str, list[int]]] = {BASELINE: {}}
        prompts: dict[str, Sequence[int]] = {}
        expected: dict[str, list[int]] = {}
        for record in group:
            if record.method in own and not engine.sampling.greedy:
                continue
            item = request_key("", record.prompt_id, record.repeat, record.turn).removeprefix("|")
            asked = order.request(record.method, record.prompt_id, record.repeat, record.turn).ids
            twin = reference[record.prompt_id, record.turn]
            if asked == order.request(BASELINE, record.prompt_id, twin.repeat, record.turn).ids:
                prompts[item], expected[item] = asked, twin.ids
                graded.setdefault(record.method, {})[item] = record.ids
        for label, tally in lossless.grade_all(engine, plan.max_rows, prompts, expected, graded).items():
            tallies[label].append(tally)
    return {label: grades.merge(found) for label, found in tallies.items()}


@dataclass(frozen=True)
class Checked:
    """Losslessness of every method of a plan on one task, AR itself left out.

    Attributes:
        prompts: ids of the prompts that were answered.
        tallies: method label -> :func:`specbench.runner.lossless.tally`; of methods that draw noise of their own only where
            nothing was sampled.
        sampled: prompt -> token ids of AR's answer to its first turn, and the same of each method with its own noise,
            by label; empty where nothing was sampled. Answers of several seeds together can be compared.
    """

    prompts: Sequence[str]
    tallies: Mapping[str, dict[str, Any]]
    sampled: Mapping[str, Mapping[str, Sequence[int]]]


def check(plan: Plan, task: TaskPlan, model: LoadedModel) -> Checked:
    """Decodes every prompt once with every method, nothing timed and nothing written, and grades the answers."""
    prepared = prepare(plan, task, model)
    engine = make_engine(plan, model, prepared.longest + prepared.budget)
    try:
        plan = ready(plan, model, engine)
        runner = make_runner(plan, model, engine)
        order, records = Order(plan, prepared, {}), []
        for method, requests in order.stretches():
            engine.sampling = sampling_of(plan, requests[0].temperature)
            for record in runner.segment(method, requests):
                order.add(record)
                records.append(record)
        graded = grade(plan, engine, prepared, records)
    finally:
        engine.close()
    sampled: dict[str, dict[str, Sequence[int]]] = defaultdict(dict)
    own = {method.label for method in plan.methods if method.own_noise}
    for record in records:
        temperature = prepared.prompts[record.prompt_id].temperature
        if own and record.turn == 1 and record.method in own | {BASELINE} and not sampling_of(plan, temperature).greedy:
            sampled[record.method][record.prompt_id] = record.ids
    # In the order of the plan: that of the records is drawn by lot.
    others = [method.label for method in plan.methods if method.label != BASELINE]
    return Checked(list(prepared.prompts), {label: graded[label] for label in others if label in graded}, sampled)
