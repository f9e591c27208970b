"""Run a sweep from its grid to its files: choose the next configurations and prompts, store records as they come."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from specbench.analysis import RunContents, fastest_of, read_config, summarise
from specbench.common import UsageError, heartbeat, plugins, safe_name, write_json_atomic, write_lock
from specbench.evals import score_in_child
from specbench.hardware import PROFILE, Profile
from specbench.results import (
    BANDWIDTH,
    BASELINE,
    ENGINES,
    SWEEP,
    SWEEP_SCHEMA,
    WATCH,
    Bandwidth,
    Engines,
    Lossless,
    MethodSpec,
    RequestRecord,
    RunConfig,
    RunFolder,
    StoredTimes,
    SweepFindings,
    Watch,
    part_folder,
    read_head,
    request_key,
)
from specbench.runner import lacks_verdicts, rescore
from specbench.sweeps.executors import Executor
from specbench.sweeps.grid import Cell, Grid
from specbench.sweeps.measured import Measured
from specbench.sweeps.messages import Conditions, Failed, Task, WorkerInfo
from specbench.sweeps.search import Kind, Round, Search, lossy_labels

#: Fields of a method's record that decide its measurements.
_DECIDE = ("name", "options", "weights")


class Progress(Protocol):
    """Receives a sweep's progress."""

    def start(self, path: Path, concurrency: int, done: int, most: int) -> None: ...
    def request(self, record: RequestRecord) -> None: ...
    def phase(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...


class Silent:
    """No progress."""

    def start(self, path: Path, concurrency: int, done: int, most: int) -> None: ...
    def request(self, record: RequestRecord) -> None: ...
    def phase(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Asked:
    """The request.

    ``profile`` is used for predictions and copied into the sweep's folder; ``acceptance``: the sweep is over the draft
    length, for its accepted length.
    """

    grid: Grid
    out: Path
    kind: Kind = "grid"
    until: float | None = None
    data_dir: Path | None = None
    score: bool = True
    profile: Profile | None = None
    acceptance: bool = False


def drive(sweep: Asked, executor: Executor, progress: Progress) -> Path:
    """Run a sweep to its end, continuing a stopped one with the same model, prompts, machine and software.

    Finished configurations are not decoded again, whichever command decoded them. New ones are decoded next to a new AR
    pass, because the machine's state may have changed.
    """
    described = executor.describe()
    executor.listen(progress)
    digest = _digest(described)
    names = "+".join(dict.fromkeys(cell.method.name for cell in sweep.grid.cells))
    path = sweep.out / f"sweep-{safe_name(f'{names}-{described.config.task.name}')}-{digest[:8]}"
    parts: list[_Part] = []
    try:
        for count in sweep.grid.concurrency:
            parts.append(_Part(part_folder(path, count), sweep, described, count, digest))
        with write_lock(path):  # a command with other concurrencies may be running
            times = _write_head(path, sweep, described, digest)
        for part in parts:
            part.decode(executor, progress, times)
        for part in parts:
            part.finish(executor, progress)
    finally:
        for part in parts:
            part.folder.close()
    return path


class _Part:
    """A sweep at one concurrency: a run folder whose methods are the configurations."""

    def __init__(self, path: Path, sweep: Asked, described: WorkerInfo, concurrency: int, digest: str) -> None:
        self._sweep, self._described, self.concurrency = sweep, described, concurrency
        config = described.config.model_copy(update={"concurrency": concurrency})
        run = {
            "created_utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            **config.model_dump(mode="json"),
            "environment": dict(described.environment),
            "passes": {},
        }
        self.folder = RunFolder.at(path, digest, run)
        try:
            self.records = [record.untraced() for record in self.folder.records()]
            self._join(read_config(self.folder), config)
        except BaseException:
            self.folder.close()
            raise
        labels = [cell.label for cell in sweep.grid.cells]
        self.search = Search(
            labels, described.tuning, described.held_out, concurrency, sweep.kind, sweep.until,
            lossy=lossy_labels(config.methods),
        )  # fmt: skip
        self.measured = Measured(shared=concurrency > 1)
        for record in self.records:
            self.measured.add(record)

    def _join(self, before: RunConfig, config: RunConfig) -> None:
        """Add configurations to those in the folder, each with the number of the pass that decodes it."""
        run = self.folder.run
        passes: dict[str, int] = dict(run.get("passes", {}))
        fresh = [spec.label for spec in config.methods if spec.label not in passes and spec.label != BASELINE]
        # Before anything is decoded, all configurations can share the first pass.
        number = 1 + max(passes.values()) if passes and self.records else 0
        passes |= dict.fromkeys(fresh, number)
        known = _written(before.methods) if run.get("passes") else {}
        mine = _written(config.methods)
        simulated, asked_before = (
            {label: asked.model_dump(mode="json") for label, asked in each.simulated.items()}
            for each in (config, before)
        )
        for label in sorted(known.keys() & mine.keys()):
            # A label shows the swept options, not the fixed ones.
            then = {name: known[label][name] for name in _DECIDE}, asked_before.get(label)
            if then != ({name: mine[label][name] for name in _DECIDE}, simulated.get(label)):
                raise UsageError(f"{self.folder.path} has '{label}' with other options; choose another --out")
        if fresh or not self.folder.finished:
            methods = [*{**known, **mine}.values()]
            simulated = {**asked_before, **simulated}
            self.folder.go_on({**run, "methods": methods, "simulated": simulated, "passes": passes})
        self._passes = passes

    def decode(self, executor: Executor, progress: Progress, times: Mapping[str, StoredTimes]) -> None:
        """Decode what is left, with automatic settings from the times that the sweep began with."""
        tuning = set(self._described.tuning)
        assert tuning, "a sweep has prompts"
        wanted = {(label, self._passes[label]) for label in self.search.labels}
        wanted |= {(BASELINE, number) for _, number in wanted}
        most = len(wanted) * self._requests(self._described.tuning) + 2 * self._requests(self._described.held_out)
        done = sum((r.method, r.repeat) in wanted and r.prompt_id in tuning for r in self.records)
        progress.start(self.folder.path, self.concurrency, done, most)
        # Configurations that an earlier command gave up are tried again if requested: their method may be fixed.
        engines = self.folder.read(ENGINES) or Engines()
        gone = engines.failed
        failed = {label: why for label, why in gone.items() if label not in self.search.labels}
        for label, why in plugins.ended_rows(str(self.folder.path)).items():  # it would end this process, too
            self.search.stopped[label], failed[label] = "failed", why
        heartbeat.record(folder=str(self.folder.path))
        recorded = read_config(self.folder).task
        asked = recorded if recorded.dated else None
        for step in self.search.rounds(self.measured):
            found = Conditions(self.folder.read(BANDWIDTH) or Bandwidth(), self.folder.read(WATCH) or Watch())
            tasks = self._tasks(step)
            known = found if executor.alone else None
            given = [replace(task, times=times, conditions=known, asked=asked) for task in tasks]
            for record in executor.run(given):
                if isinstance(record, Conditions):
                    self._observed(record)
                    continue
                if isinstance(record, Failed):
                    if record.label not in failed:
                        progress.note(f"{record.why}; {record.label} is marked, the other configurations go on")
                    self.search.stopped[record.label], failed[record.label] = "failed", record.why
                    continue
                if self.folder.finished:  # a search that needs more than any earlier command
                    self.folder.go_on(self.folder.run)
                self.folder.log.append(record.model_dump(mode="json"))
                self.records.append(record.untraced())
                self.measured.add(record)
                progress.request(record)
        heartbeat.record(folder="")
        self._engine = executor.report()  # the next part has an engine of its own
        if failed != gone:
            if self.folder.finished:
                self.folder.go_on(self.folder.run)
            self.folder.write(ENGINES, engines.model_copy(update={"failed": failed}))

    def _observed(self, found: Conditions) -> None:
        """Store the readings of the machine; those of a finished part stay if nothing more was decoded."""
        if self.folder.finished:
            return
        if found.bandwidth.readings or found.bandwidth.refused:
            self.folder.write(BANDWIDTH, found.bandwidth)
        if found.watch.looks:
            self.folder.write(WATCH, found.watch)

    def _tasks(self, step: Round) -> Iterator[Task]:
        texts = {record.request_id: record.text for record in self.records}
        segment = 1 + max((record.segment for record in self.records), default=-1)
        by_pass: dict[int, list[str]] = {}
        for label in step.labels:
            if label != BASELINE:
                by_pass.setdefault(self._passes[label], []).append(label)
        for block in step.blocks:
            for number, labels in by_pass.items():
                together = (BASELINE, *labels)
                wanted = [
                    request_key(label, prompt, number, turn)
                    for label in together
                    for prompt in block
                    for turn in range(1, 1 + self._described.turns[prompt])
                ]
                if any(key not in texts for key in wanted):
                    done = {key: texts[key] for key in wanted if key in texts}
                    yield Task(self.concurrency, together, block, number, segment, done)
                    segment += len(wanted)

    def _requests(self, prompts: Sequence[str]) -> int:
        return sum(self._described.turns[prompt] for prompt in prompts)

    def finish(self, executor: Executor, progress: Progress) -> None:
        """Grade, score and summarise if anything is new."""
        config = read_config(self.folder)
        if self.folder.finished:
            if self._sweep.score and lacks_verdicts(self.folder, config):
                rescore(self.folder, self._sweep.data_dir, progress.phase)
            return
        before = self.folder.summary()
        graded: dict[str, Mapping[str, Any] | Lossless] | None = None
        verdicts = None
        if not config.simulated:
            progress.phase("checking losslessness")
            # A worker knows this command's configurations; results of others stay.
            known = {row.method: row.lossless for row in before.rows if row.lossless} if before else {}
            graded = {**known, **executor.grade(self.records, *([config.task] if config.task.dated else []))}
            if config.task.metric and self._sweep.score:
                verdicts = score_in_child(self.folder.path, self._sweep.data_dir, progress.phase)
        tuning = set(self._described.tuning)
        chosen_by = [record for record in self.records if record.prompt_id in tuning]
        given = {"verdicts": verdicts, "lossless": graded, "engine": self._engine}
        summary = summarise(RunContents.of(self.folder, config, chosen_by, **given))
        search = self._with_earlier(before.sweep.stopped if before and before.sweep else {})
        together = search.found(self.measured)
        found = SweepFindings(
            stopped=dict(search.stopped),
            best=together.best,
            within_noise=list(together.as_good) if together.conclusive else [],
        )
        fastest = None if summary.unsure else fastest_of(summary.rows, together)
        self.folder.finish(summary.model_copy(update={"complete": True, "sweep": found, "fastest": fastest}))

    def _with_earlier(self, stopped: Mapping[str, str]) -> Search:
        """The search among all configurations of the folder; those of an interrupted command are not comparable."""
        prompts: dict[str, set[str]] = defaultdict(set)
        for record in self.records:
            prompts[record.method].add(record.prompt_id)
        others = {label: stopped.get(label, "") for label in self._passes if label not in self.search.labels}
        whole = set(self._described.tuning)
        kept = {label: why for label, why in others.items() if why or prompts[label] >= whole}
        reasons = {label: why for label, why in kept.items() if why} | self.search.stopped
        lossy = lossy_labels(read_config(self.folder).methods)
        return replace(self.search, labels=[*kept, *self.search.labels], stopped=reasons, lossy=lossy)


def _written(methods: Sequence[MethodSpec]) -> dict[str, Any]:
    return {spec.label: spec.model_dump(mode="json") for spec in methods}


def _digest(described: WorkerInfo) -> str:
    """Hash of everything that must agree for records to be comparable: all but configurations and concurrency."""
    config = described.config.undated().model_dump(
        mode="json", exclude={"methods", "concurrency", "repeats", "simulated"}
    )
    simulated = sorted({str(asked) for asked in described.config.simulated.values()})
    fields = [config, simulated, described.tuning, described.held_out]
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _write_head(path: Path, sweep: Asked, described: WorkerInfo, digest: str) -> dict[str, StoredTimes]:
    """Write ``sweep.json`` and return its times; configurations and times of earlier commands stay in it."""
    before = read_head(path) if (path / SWEEP).exists() else {}
    known = {what: StoredTimes.model_validate(each) for what, each in before.get("times", {}).items()}
    times = {**described.times, **known}
    if sweep.profile is not None:
        write_json_atomic(path / PROFILE, sweep.profile.model_dump(mode="json"))
    write_json_atomic(
        path / SWEEP,
        {
            "schema_version": SWEEP_SCHEMA,
            "digest": digest,
            "cells": {**before.get("cells", {}), **_described(sweep.grid.cells)},
            "too_large": {**before.get("too_large", {}), **_described(sweep.grid.too_large)},
            "concurrency": sorted({*before.get("concurrency", []), *sweep.grid.concurrency}),
            "tuning": list(described.tuning),
            "held_out": list(described.held_out),
            "search": sweep.kind,
            "until_interval": sweep.until,
            **({"acceptance": True} if sweep.acceptance or before.get("acceptance") else {}),
            **({"times": {what: each.model_dump(mode="json") for what, each in times.items()}} if times else {}),
        },
    )
    return times


def _described(cells: Sequence[Cell]) -> dict[str, Any]:
    return {cell.label: {"method": cell.method.name, "values": dict(cell.values)} for cell in cells}
