"""Run one task of a plan to a finished folder: prompts, sessions, requests, losslessness, verdicts, summary."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from statistics import median
from typing import Any, Protocol

from specbench.analysis import RunContents, plain_of, read_config, same_precision, summarise
from specbench.backends import Row
from specbench.common import EngineFault, PluginFault, UsageError, heartbeat, plugins
from specbench.evals import score_in_child
from specbench.hardware import environment
from specbench.models import LoadedModel, notes_on
from specbench.planning import Resolved
from specbench.results import (
    BASE,
    BASELINE,
    ENGINES,
    MEMORY,
    STEPS,
    TIMES,
    Engines,
    RequestRecord,
    RunFolder,
    SettledSteps,
)
from specbench.runner.config import config_of, open_folder
from specbench.runner.external.serving import RunningEngines
from specbench.runner.grades.branches import rate_branches
from specbench.runner.grades.likelihood import rate
from specbench.runner.grades.own_generate import check_generate
from specbench.runner.grades.references import rate_references
from specbench.runner.grades.rescoring import lacks_verdicts, rescore
from specbench.runner.monitor import Monitor, monitoring
from specbench.runner.order import Order
from specbench.runner.prompts import Prepared
from specbench.runner.session import Session, session_of
from specbench.runner.setup.request_state import broken_off, cut_conversations, torn_blocks
from specbench.runner.setup.threads import as_before

#: A one-row step was slow before the run if it took this many times as long as in the run. Committed runs of one
#: sequence have 0.85 to 1.2, but one 1.3; one whose times were measured while memory gave half its bandwidth had 1.5.
SLOW = 1.25


class Progress(Protocol):
    """Receives a run's progress; the CLI draws it, tests and libraries pass :class:`Silent`."""

    def done_already(self, folder: RunFolder) -> None: ...
    def start(self, folder: RunFolder, done: int, total: int, resumed: bool) -> None: ...
    def phase(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...
    def ready(self, engine: Mapping[str, Any]) -> None: ...
    def request(self, record: RequestRecord) -> None: ...


class Silent:
    """No progress."""

    def done_already(self, folder: RunFolder) -> None: ...
    def start(self, folder: RunFolder, done: int, total: int, resumed: bool) -> None: ...
    def phase(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...
    def ready(self, engine: Mapping[str, Any]) -> None: ...
    def request(self, record: RequestRecord) -> None: ...


def run_task(
    resolved: Resolved, model: LoadedModel, prepared: Prepared, progress: Progress, base: LoadedModel | None = None
) -> RunFolder:
    """Run one task to its end, continuing in an unfinished folder of the same configuration if there is one.

    Finished requests are not decoded again unless the plan says so, and no graph is captured for them. ``base``: the
    model's base, if the plan has a row of it.
    """
    captured = environment.capture(str(model.model.device))
    heartbeat.record(folder="")
    capacity = prepared.longest + prepared.budget
    learning = next((method.label for method in resolved.methods if method.stateful), None)
    if resolved.arrivals and learning and not prepared.spare:
        raise UsageError(
            f"cannot run {learning} under load: it learns from earlier requests, and only measured prompts "
            "are there to load the system; lower --limit, so that others are left"
        )
    own = [method for method in resolved.methods if method.label != BASE or base is None]
    with ExitStack() as stack:
        # Before creating the folder, so that a refusal by the engine or a method leaves no folder.
        sessions = [stack.enter_context(session_of(resolved, model, capacity, own, metered=True))]
        if base is not None:
            theirs = [method for method in resolved.methods if method.label == BASE]
            sessions.append(stack.enter_context(session_of(resolved, base, capacity, theirs, metered=True)))
        ready = {method.label: method for session in sessions for method in session.methods}
        resolved = replace(resolved, methods=tuple(ready[method.label] for method in resolved.methods))
        config = config_of(resolved, model, prepared, captured, sessions[0].engine.code.linears, base)
        checked = check_generate(resolved.plan, sessions[0], prepared, captured)
        notes = [*notes_on(model), *prepared.notes, *(line for session in sessions for line in session.notes)]
        about = {**({"notes": notes} if notes else {}), "generate_check": checked.written()}
        folder, resumed = open_folder(resolved, config, captured, about)
        heartbeat.record(folder=str(folder.path))
        with folder:
            config = read_config(folder)
            prepared = prepared.as_recorded(config.task)
            for line in notes:
                progress.note(line)
            if folder.finished:
                progress.done_already(folder)
                if not resolved.plan.no_score and lacks_verdicts(folder, config):
                    rescore(folder, resolved.plan.data_dir, progress.phase)
                return folder
            if resumed and resolved.plan.threads is None:
                as_before(folder.run)
            resolved = _calibrated(resolved, sessions, folder)
            with (
                monitoring(
                    sessions,
                    resolved.simulated,
                    folder,
                    progress,
                    resolved.rows,
                    resolved.plan.patience,
                    text=prepared.ids[0],
                ) as monitor,
                RunningEngines(resolved.rows, sessions[0], folder, progress) as engines,
            ):
                records = _decode(resolved, sessions, prepared, folder, progress, resumed, monitor, engines)
            graded, over_own, verdicts = None, None, None
            if not resolved.simulated:  # with simulated acceptance the text means nothing
                progress.phase("checking losslessness")
                own_rows = [record for record in records if record.method != BASE]
                graded, over_own = _graded(resolved, sessions[0], prepared, own_rows, folder.read(ENGINES) or Engines())
                progress.phase("asking the model how likely the texts are")
                rate(sessions[-1].engine, prepared, records, folder.path, progress.note)
                rate_references(sessions, prepared, folder)
                rate_branches(sessions[0].engine, prepared, own_rows, folder.path, progress.note)
                if config.task.metric and not resolved.plan.no_score:
                    verdicts = score_in_child(folder.path, resolved.plan.data_dir, progress.phase)
            engine = sessions[0].report() | slow_times(resolved, sessions[0], records)
            engine[MEMORY] = {label: held for session in sessions for label, held in session.report()[MEMORY].items()}
            given = {"verdicts": verdicts, "lossless": graded, "engine": engine, "over_own": over_own}
            folder.finish(summarise(RunContents.of(folder, config, records, **given)))
    return folder


def _warm_up(session: Session, prepared: Prepared, engines: RunningEngines | None) -> None:
    """Warm up a session's methods; a method that fails is marked, and the others start again without it."""
    failed = engines.failed if engines else {}
    while methods := [method for method in session.methods if method.label not in failed]:
        try:
            session.warm_up(prepared, methods)
            return
        except PluginFault as fault:
            if engines is None or fault.row in ("", BASELINE):
                raise
            engines.fail(fault.row, fault)
            if fault.spoils_all:
                raise


def _kept(
    resolved: Resolved, prepared: Prepared, folder: RunFolder, progress: Progress, failed: Container[str]
) -> list[RequestRecord]:
    """The valid records of a resumed folder.

    The state of a stateful row was lost with the process, and its figures would mix two cold starts, so it starts
    again, unless it had failed. So does a conversation whose turns keep the KV of earlier ones."""
    records = [record.untraced() for record in folder.records()]
    again: dict[str, list[RequestRecord]] = {}
    if resolved.plan.keep_prefix:
        again = cut_conversations(records, {name: prompt.turns for name, prompt in prepared.prompts.items()}, failed)
        for label, theirs in again.items():
            progress.note(f"{label} was interrupted in a conversation; {len(theirs)} requests start again, in order")
    if resolved.arrivals:
        turns = {name: prompt.turns for name, prompt in prepared.prompts.items()}
        again = torn_blocks(records, Order(resolved, prepared, {}).blocks(), turns, failed)
        for label, theirs in again.items():
            progress.note(f"{label} was interrupted in a block of arrivals; {len(theirs)} requests start again")
    stateful = {method.label for method in resolved.methods if method.label not in failed and method.stateful}
    lost = broken_off(records, stateful, prepared.spec.requests)
    for label, theirs in lost.items():
        progress.note(
            f"{label} learns from earlier requests and was interrupted; it starts again, {len(theirs)} requests"
        )
    gone = {record.request_id for theirs in (*again.values(), *lost.values()) for record in theirs}
    if gone:
        folder.restart(gone)
    return [record for record in records if record.request_id not in gone]


def _graded(
    resolved: Resolved, session: Session, prepared: Prepared, records: Sequence[RequestRecord], engines: Engines
) -> tuple[Mapping[str, dict[str, Any]], Mapping[str, dict[str, Any]]]:
    """Losslessness against our AR, and of another engine's speculation against its own plain decoding.

    Rows that answered only in text have no ids to compare, and rows in another precision rightly have other answers.
    """
    specs = {spec.label: spec for spec in resolved.specs()}
    textual = {label for label, facts in engines.rows.items() if not facts.ids}
    dtype = session.model.spec.dtype
    ours = [r for r in records if r.method not in textual and same_precision(specs[r.method], dtype)]
    against_ar = session.grade(prepared, ours, rows=resolved.rows)
    over_own: dict[str, dict[str, Any]] = {}
    for label, spec in specs.items():
        plain = plain_of(spec, list(specs.values()))
        if plain and label not in textual:
            pair = [record for record in records if record.method in (label, plain)]
            found = session.grade(prepared, pair, rows=resolved.rows, reference=plain)
            over_own |= {label: found[label]} if label in found else {}
    return against_ar, over_own


def _calibrated(resolved: Resolved, sessions: Sequence[Session], folder: RunFolder) -> Resolved:
    """The run with automatic settings from the times stored in its folder, or stored there now."""
    known = folder.read(TIMES) or {}
    for session in sessions:
        session.calibrate(known)
    used = {what: each for session in sessions for what, each in session.calibration.used.items()}
    if used != known:
        folder.write(TIMES, used)
    ready = {method.label: method for session in sessions for method in session.methods}
    return replace(resolved, methods=tuple(ready[method.label] for method in resolved.methods))


def slow_times(resolved: Resolved, session: Session, records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Seconds of a one-row step, as automatic settings have them and in the run, if something slowed the former.

    Steps of few rows, which are bound by memory, then look nearly as slow as steps of many, and trees get too many
    rows. The next run measures such times again. Steps after longer texts rightly take longer and are not looked at.
    """
    plain = [r.decode_s / r.target_forwards for r in records if r.method == BASELINE and r.target_forwards]
    if not plain or resolved.plan.concurrency > 1:
        return {}
    used, usual = session.calibration.used, f"after {session.engine.calibration_context} tokens"
    one_row = {what: each.times[0][1] for what, each in used.items() if isinstance(each.times, list)}
    slow = {what: s for what, s in one_row.items() if what.endswith(usual) and s > SLOW * median(plain)}
    for what in slow:
        session.calibration.forget(what)
    return {"slow_times": {"before_s": max(slow.values()), "run_s": median(plain)}} if slow else {}


def _decode(
    resolved: Resolved,
    sessions: Sequence[Session],
    prepared: Prepared,
    folder: RunFolder,
    progress: Progress,
    resumed: bool,
    monitor: Monitor | None = None,
    engines: RunningEngines | None = None,
) -> list[RequestRecord]:
    """All records of the run; those of a resumed folder come first."""
    failed = engines.failed if engines else {}
    if engines:
        for label, why in plugins.ended_rows(str(folder.path)).items():
            if label not in failed:
                engines.fail(label, PluginFault(why, label))
    records = _kept(resolved, prepared, folder, progress, failed)
    order = Order(resolved, prepared, {record.request_id: record.text for record in records})
    progress.start(folder, len(records), order.total, resumed)
    if len(records) < order.total:
        progress.phase("warming up")
        settled = folder.read(STEPS) or SettledSteps(engines=[])
        for at, session in enumerate(sessions):
            session.engine.pad_as(*(each[at] if at < len(each) else () for each in (settled.engines, settled.products)))
            _warm_up(session, prepared, engines)
        reports = [session.report() for session in sessions]
        if any(measured := [report.get("steps", []) for report in reports]):
            products = [report.get("products", []) for report in reports]
            folder.write(STEPS, SettledSteps(engines=measured, products=products))
        progress.ready(sessions[0].report())
        if engines:
            engines.start(prepared)
            for label in failed:
                order.give_up(label)
    session_of_method = {method.label: session for session in sessions for method in session.methods}
    first = number = 1 + max((record.segment for record in records), default=-1)
    for number, (method, requests) in enumerate(order.stretches(), first):
        if monitor:
            monitor.before(number)
        with engines.turn_of(method.label) if engines else nullcontext():
            try:
                if isinstance(method, Row):
                    assert engines is not None
                    decoded = engines.decode(method.label, requests, number, order.load(requests))
                else:
                    session = session_of_method[method.label]
                    decoded = session.decode(method, requests, number, load=order.load(requests))
                for record in decoded:
                    folder.log.append(record.model_dump(mode="json"))
                    records.append(record.untraced())
                    order.add(record)
                    progress.request(record)
            except (EngineFault, PluginFault) as fault:
                if engines is None or method.label == BASELINE:  # without AR the others have no baseline
                    raise
                engines.fail(method.label, fault)
                if isinstance(fault, PluginFault) and fault.spoils_all:
                    raise
                order.give_up(method.label)
    if engines:
        engines.rest()
    if monitor:
        monitor.after(number)
    return records
