"""Reader: a run back from its files; for figures to rest on, only a finished one whose files agree. No torch."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from specbench.common import UsageError
from specbench.common.errors import first_fault
from specbench.common.files import write_json_atomic
from specbench.results.folder import RunFolder
from specbench.results.judgments import read_judgments, scores
from specbench.results.schema import RequestRecord, RunConfig, request_key
from specbench.results.schema_1 import projection_from_1, projection_to_1
from specbench.results.summary import summarise
from specbench.results.summary_schema import RunSummary
from specbench.results.verdicts import VERDICTS, read_metrics, read_verdicts

#: File name of a projection onto another GPU.
PROJECTION = "projection-{}.json"


@dataclass(frozen=True)
class ReadRun:
    """A run as it is on disk; of an unfinished one, the summary of what there is so far.

    ``judged`` is :func:`specbench.results.judgments.scores`, empty where no judge was asked; ``projections`` the
    contents of what ``--project`` wrote.
    """

    run: dict[str, Any]
    config: RunConfig
    records: list[RequestRecord]
    verdicts: dict[str, bool]
    summary: RunSummary
    judged: list[dict[str, Any]]
    projections: list[dict[str, Any]] = field(default_factory=list)
    finished: bool = True


def read_run(path: Path, *, traces: bool = True) -> ReadRun:
    """Reads a run folder.

    Args:
        path: the folder.
        traces: keep how each token came; what it takes of memory is most of a run made with ``--trace``.

    Raises:
        UsageError: not a run folder, damaged, put together from several, or written by a newer version.
    """
    folder = RunFolder.load(path)
    config = read_config(folder)
    with _uncollected():
        records = list(whole_records(folder, config, traces=traces))
    verdicts, metrics = read_scores(path)
    summary = folder.summary() or summarise(config, records, verdicts or None, metrics=metrics)
    judgments = read_judgments(path)
    judged = scores(judgments, [spec.label for spec in config.methods])
    return ReadRun(folder.run, config, records, verdicts, summary, judged, read_projections(folder), folder.finished)


def read_config(folder: RunFolder) -> RunConfig:
    """The configuration of a run.

    Raises:
        UsageError: it does not fit; names the field.
    """
    try:
        return RunConfig.model_validate({k: v for k, v in folder.run.items() if k in RunConfig.model_fields})
    except ValidationError as error:
        raise UsageError(f"{folder.path} is damaged: {first_fault(error)}; run it again") from error


def read_scores(path: Path) -> tuple[dict[str, bool], dict[str, dict[str, bool]]]:
    """Verdicts and further metrics of a run, see :mod:`specbench.evals.launch`.

    Raises:
        UsageError: damaged.
    """
    try:
        return read_verdicts(path), read_metrics(path)
    except (ValueError, KeyError, TypeError) as error:
        again = f"python -m specbench.evals {path}"
        raise UsageError(f"{path / VERDICTS} is damaged ({error}); {again} writes it anew") from error


def whole_records(folder: RunFolder, config: RunConfig, *, traces: bool = True) -> Iterator[RequestRecord]:
    """The requests of a run, one after the other, checked against the run's other files.

    Args:
        folder: the run.
        config: its configuration.
        traces: as for :func:`read_run`.

    Raises:
        UsageError: a record is twice there, contradicts itself or is of a method that the run has not; or a finished
            run has other sums of them than its summary says. What came before must not be used then.
    """
    sums = {spec.label: _Sums() for spec in config.methods}
    keys: set[str] = set()
    for record in folder.records():
        if said := _misplaced(record, sums, keys):
            raise UsageError(
                f"{folder.path} is damaged or mixed: {record.request_id} {said}; restore it or repeat the run"
            )
        keys.add(record.request_id)
        sums[record.method] = sums[record.method].with_(record)
        yield record if traces else record.untraced()
    if said := _miscounted(folder, sums):
        raise UsageError(f"{folder.path} is cut off or mixed: {said}; restore it or repeat the run")


class _Sums(NamedTuple):
    """Of a method's requests; a file cut off at its end, or another run's, has other ones."""

    requests: int = 0
    tokens: int = 0
    forwards: int = 0

    def with_(self, record: RequestRecord) -> _Sums:
        return _Sums(self.requests + 1, self.tokens + record.output_tokens, self.forwards + record.target_forwards)


def _misplaced(record: RequestRecord, methods: Container[str], keys: Container[str]) -> str:
    """Why a record cannot be of this run; empty where it can."""
    if record.method not in methods:
        return "is of a method that the run has not"
    if record.request_id != request_key(record.method, record.prompt_id, record.repeat, record.turn):
        return "is not what its fields say"
    if record.request_id in keys:
        return "is there twice"
    if not len(record.output_ids) == record.output_tokens == 1 + sum(record.accepted_lengths):
        return "has other tokens than its forwards emitted"
    times = (record.ttft_s, record.decode_s, record.latency_s, record.prefill_share_s, record.decode_share_s)
    if not all(math.isfinite(seconds) and seconds >= 0 for seconds in times):
        return "has a time that is none"
    return ""


def _miscounted(folder: RunFolder, sums: Mapping[str, _Sums]) -> str:
    """What a finished run's summary has of other requests than these; empty where it is of the same."""
    summary = folder.summary() if folder.finished else None
    if summary is None:
        return "it is finished and has no summary" if folder.finished else ""
    told = {row.method: _Sums(row.requests, row.tokens, row.target_forwards) for row in summary.rows}
    if {*told} != {*sums}:
        return "its summary has other methods than run.json"
    for label, found in sums.items():
        for what, here, there in zip(_Sums._fields, found, told[label], strict=True):
            # A sweep's summary is of the prompts to choose by; its requests are more.
            if here < there or (here > there and summary.sweep is None):
                return f"it holds {here} {what} of {label} where its summary has {there}"
    return ""


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the cyclic garbage collector, which would look at every record again and again: most of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def read_projections(folder: RunFolder) -> list[dict[str, Any]]:
    """What ``--project`` wrote beside a run.

    Raises:
        UsageError: damaged.
    """
    found = []
    for file in sorted(folder.path.glob(PROJECTION.format("*"))):
        try:
            content = json.loads(file.read_bytes())
            if not isinstance(content["rows"], dict):
                raise TypeError("its rows are no mapping")
            content = projection_from_1(content) if folder.schema == 1 else content
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{file} is damaged ({error}); delete it, or run with --project again") from error
        found.append(content)
    return found


def write_projection(folder: RunFolder, gpu: str, content: Mapping[str, Any]) -> None:
    """Writes what :func:`read_projections` reads, with the names of the run's own schema.

    Raises:
        EnvironmentRefused: the disk is full.
    """
    written = projection_to_1(content) if folder.schema == 1 else dict(content)
    write_json_atomic(folder.path / PROJECTION.format(gpu), written)


def read_whole(path: Path) -> ReadRun:
    """A finished run of which every file agrees with the others.

    Raises:
        UsageError: not a run folder, unfinished, damaged, cut off, of a newer version, or files of several runs; names
            the folder and says what to do.
    """
    folder = RunFolder.load(path)
    if not folder.finished:
        raise UsageError(f"{path} is not finished; repeat its command to go on")
    if not folder.summary():
        raise UsageError(f"{path} has no summary.json; restore it or repeat the run")
    read = read_run(path)
    try:
        _check(read)
    except UsageError as error:
        raise UsageError(f"{path} cannot be used: {error}; restore it or repeat the run") from error
    return read


def _check(read: ReadRun) -> None:
    if not read.summary.complete:
        raise UsageError("it does not hold all the requests of its configuration")
    prompts: dict[str, list[str]] = {spec.label: [] for spec in read.config.methods}
    for record in read.records:
        prompts[record.method].append(record.prompt_id)
    task = read.config.task
    expected = (task.requests or task.prompts) * read.config.repeats
    for label, asked in prompts.items():
        if len(asked) != expected or len({*asked}) != task.prompts:
            raise UsageError(f"requests.jsonl holds {len(asked)} requests of {label}, run.json says {expected}")
    if strange := read.verdicts.keys() - {record.request_id for record in read.records}:
        raise UsageError(f"verdicts.jsonl judges {min(strange)}, which requests.jsonl does not hold")
