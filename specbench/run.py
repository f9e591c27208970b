"""A run from a plan to a finished folder: prompts, warm-up, order, requests, losslessness, verdicts, summary."""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Protocol

from specbench import environment, lossless
from specbench.decoding import Context, Method
from specbench.engine import linears
from specbench.engine.engine import Engine
from specbench.engine.sampler import Sampling
from specbench.errors import UsageError
from specbench.models import LoadedModel
from specbench.plan import Plan, TaskPlan
from specbench.records import BASELINE, RequestRecord, RunConfig, TaskSpec, request_key
from specbench.runner import Request, Runner
from specbench.scoring.launch import score_in_child
from specbench.stopping import StopRule
from specbench.storage import RunFolder
from specbench.summary import summarise
from specbench.task import Prompt

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
    def request(self, record: RequestRecord) -> None: ...


class Silent:
    """No progress."""

    def start(self, folder: RunFolder, done: int, total: int, resumed: bool) -> None: ...
    def phase(self, text: str) -> None: ...
    def request(self, record: RequestRecord) -> None: ...


@dataclass(frozen=True)
class Prepared:
    """A task's prompts, tokenised for one model."""

    task: TaskPlan
    spec: TaskSpec
    budget: int
    requests: dict[str, Request]  # by prompt id, repeat 0

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(len(request.ids) for request in self.requests.values())


def prepare(plan: Plan, task: TaskPlan, model: LoadedModel) -> Prepared:
    """Reads a task's data, renders and tokenises its prompts, and checks that they fit.

    Raises:
        UsageError: no prompts, or a prompt that leaves no room for its answer in the model's context.
    """
    instance = task.module.Task(task.options, plan.data_dir)
    prompts: Sequence[Prompt] = instance.prompts(model.has_chat_template)[: plan.limit]
    if not prompts:
        raise UsageError(f"task '{task.card.name}' has no prompts to run")
    budget = plan.max_new_tokens or int(task.card.info["max_new_tokens"])
    requests = {}
    digest = hashlib.sha256()
    for prompt in prompts:
        ids = model.encode(prompt)
        if model.context and len(ids) + budget > model.context:
            raise UsageError(
                f"prompt {prompt.id} has {len(ids)} tokens and --max-new-tokens is {budget}, but {model.spec.name} "
                f"takes {model.context} in all; lower --max-new-tokens or leave the prompt out"
            )
        rule = StopRule(model.stop_ids, prompt.stops, budget, model.decode)
        requests[prompt.id] = Request(prompt.id, 0, ids, rule)
        digest.update(json.dumps([prompt.id, ids, list(prompt.stops)]).encode())
    spec = TaskSpec(
        name=task.card.name,
        version=int(task.card.info["version"]),
        options=instance.options.model_dump(mode="json"),
        prompts=len(requests),
        prompts_sha256=digest.hexdigest(),
    )
    return Prepared(task, spec, budget, requests)


def sampling_of(plan: Plan) -> Sampling:
    """The engine's sampling for a plan.

    Raises:
        UsageError: a value outside its range.
    """
    try:
        return Sampling(**plan.sampling.model_dump())
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
        backend=plan.attention,
    )


def make_runner(plan: Plan, model: LoadedModel, engine: Engine) -> Runner:
    """A runner whose decoders draw drafts from (seed, prompt, repeat): repeatable, and alike for equal methods."""

    def context(label: str, request: Request) -> Context:
        rng = random.Random(f"{plan.sampling.seed}/{request.prompt_id}/{request.repeat}")
        return Context(model.vocab_size, model.pad_id, rng)

    return Runner(engine, context, plan.concurrency, trace=plan.trace)


def execute(plan: Plan, model: LoadedModel, prepared: Prepared, progress: Progress) -> RunFolder:
    """Runs one task to its end, going on in an unfinished folder of the same configuration where there is one.

    Raises:
        SpecbenchError: what went wrong, in one line. Finished requests are kept in any case.
    """
    captured = environment.capture(str(model.model.device))
    config = RunConfig(
        model=model.spec,
        task=prepared.spec,
        methods=plan.specs(),
        sampling=plan.sampling,
        max_new_tokens=prepared.budget,
        repeats=plan.repeats,
        concurrency=plan.concurrency,
        attention=plan.attention,
        linears=linears.kind_for(model.model),
        order_seed=plan.sampling.seed,
        trace=plan.trace,
        identity=environment.fingerprint(captured),
    )
    # Before the folder: what the engine refuses must leave nothing behind.
    engine = make_engine(plan, model, prepared.longest + prepared.budget)
    try:
        folder, resumed = _open_folder(plan, prepared, config, captured)
        with folder:
            records = _decode(plan, model, engine, prepared, folder, progress, resumed)
            progress.phase("checking losslessness")
            graded = _grade(plan, engine, prepared, records)
            progress.phase("scoring answers")
            verdicts = score_in_child(folder.path, plan.data_dir)
            folder.finish(summarise(config, records, verdicts, graded))
    finally:
        engine.close()
    return folder


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


def _decode(
    plan: Plan,
    model: LoadedModel,
    engine: Engine,
    prepared: Prepared,
    folder: RunFolder,
    progress: Progress,
    resumed: bool,
) -> list[RequestRecord]:
    records = [RequestRecord.model_validate(line) for line in folder.requests()]
    done = {record.key for record in records}
    segments = list(_order(plan, list(prepared.requests.values()), done))
    progress.start(folder, len(done), len(done) + sum(len(requests) for _, requests in segments), resumed)
    runner = make_runner(plan, model, engine)
    if segments:
        progress.phase("warming up")
        _warm_up(plan, model, prepared, runner)
    first = 1 + max((record.segment for record in records), default=-1)
    for number, (method, requests) in enumerate(segments, first):
        for record in runner.segment(method, requests, number):
            folder.log.append(record.model_dump(mode="json"))
            records.append(record)
            progress.request(record)
    return records


def _order(plan: Plan, requests: Sequence[Request], done: set[str]) -> Iterator[tuple[Method, list[Request]]]:
    """Segments in which what is left is run: methods interleaved in random order, so that drift hits all alike.

    One sequence at a time, the methods follow each other on every prompt. With slots to fill, a method runs all prompts
    of a repeat in one go, or the slots would run empty at the end of every prompt.
    """
    for repeat in range(plan.repeats):
        groups = [[request] for request in requests] if plan.concurrency == 1 else [list(requests)]
        for at, group in enumerate(groups):
            methods = list(plan.methods)
            random.Random(f"{plan.sampling.seed}/{repeat}/{at}").shuffle(methods)
            for method in methods:
                todo = [
                    Request(r.prompt_id, repeat, r.ids, r.rule)
                    for r in group
                    if request_key(method.label, r.prompt_id, repeat) not in done
                ]
                if todo:
                    yield method, todo


def _warm_up(plan: Plan, model: LoadedModel, prepared: Prepared, runner: Runner) -> None:
    """Runs every method on text of the tool's own, as long as the longest prompt and in every slot."""
    text = model.tokenizer(_WARM_UP * (1 + prepared.longest // 32))["input_ids"][: prepared.longest]
    rule = StopRule(frozenset(), (), min(_WARM_UP_TOKENS, prepared.budget), model.decode)
    for method in plan.methods:
        requests = [Request(f"warm-up/{slot}", 0, text, rule) for slot in range(plan.concurrency)]
        for _ in runner.segment(method, requests):
            pass


def _grade(
    plan: Plan, engine: Engine, prepared: Prepared, records: Sequence[RequestRecord]
) -> Mapping[str, dict[str, Any]]:
    # Repeats share seed and prompt, so each must give the same ids as the first AR pass; all of them are graded.
    reference = {r.prompt_id: r.ids for r in records if r.method == BASELINE and r.repeat == 0}
    graded: dict[str, dict[str, list[int]]] = defaultdict(dict)
    prompts: dict[str, Sequence[int]] = {}
    graded[BASELINE] = {}
    for record in records:
        item = f"{record.prompt_id}#{record.repeat}"
        prompts[item] = prepared.requests[record.prompt_id].ids
        graded[record.method][item] = record.ids
    expected = {item: reference[item.rpartition("#")[0]] for item in prompts}
    return lossless.grade_all(engine, plan.max_rows, prompts, expected, graded)


def check(plan: Plan, task: TaskPlan, model: LoadedModel) -> dict[str, dict[str, Any]]:
    """Losslessness of every method of a plan on one task, nothing timed and nothing written.

    Returns:
        Method label -> :func:`specbench.lossless.tally`; AR itself left out.
    """
    prepared = prepare(plan, task, model)
    engine = make_engine(plan, model, prepared.longest + prepared.budget)
    try:
        runner = make_runner(plan, model, engine)
        requests = list(prepared.requests.values())
        records = [record for method in plan.methods for record in runner.segment(method, requests)]
        graded = _grade(plan, engine, prepared, records)
    finally:
        engine.close()
    return {label: counts for label, counts in graded.items() if label != BASELINE}
