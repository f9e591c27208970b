"""Runs from their files, after checking that the files agree."""

from __future__ import annotations

import gc
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from specbench.analysis.summary import RunContents, summarise
from specbench.common import (
    UsageError,
    damaged,
    first_fault,
    in_64_bits,
    one_line,
    read_json_object,
    validate,
    write_json_atomic,
)
from specbench.results import (
    PHASES,
    REPEAT,
    RUN,
    Attached,
    MethodSummary,
    RequestRecord,
    RunConfig,
    RunFolder,
    RunSummary,
    VerdictLine,
    judge_scores,
    read_judgments,
    read_scores,
    request_key,
)

#: File name of a projection onto another GPU.
PROJECTION = "projection-{}.json"


@dataclass(frozen=True)
class ReadRun:
    """A run as it is on disk; for an unfinished run, the summary covers the requests so far.

    ``judged`` is from :func:`specbench.results.judgments.judge_scores`, ``projections`` from ``--project``.
    """

    run: dict[str, Any]
    config: RunConfig
    records: list[RequestRecord]
    verdicts: dict[str, bool]
    summary: RunSummary
    judged: list[dict[str, Any]]
    projections: list[dict[str, Any]] = field(default_factory=list)
    finished: bool = True

    @property
    def complete(self) -> bool:
        """Whether all requests of the configuration are finished."""
        return self.finished and self.summary.complete


def read_run(path: Path, *, traces: bool = True, scored: bool = True) -> ReadRun:
    """Read a run folder.

    Args:
        traces: keep the origin of each token, which takes most of the memory of a run made with ``--trace``.
        scored: the summary includes the folder's verdicts, so the two are checked against each other.
    """
    folder = RunFolder.load(path)
    config = read_config(folder)
    with _uncollected():
        records = list(whole_records(folder, config, traces=traces, scored=scored))
    summary = read_summary(folder, config) or summary_so_far(folder, config, records)
    verdicts, _ = read_scores(path)
    judged = judge_scores(read_judgments(path), [spec.label for spec in config.methods])
    return ReadRun(folder.run, config, records, verdicts, summary, judged, read_projections(folder), folder.finished)


def read_config(folder: RunFolder) -> RunConfig:
    """The configuration of a run."""
    where, todo = folder.path / RUN, "run it again"
    found = {name: value for name, value in folder.run.items() if name in RunConfig.model_fields}
    try:  # strict, because run.json is also shown unparsed: its values must already have the right types
        config = RunConfig.model_validate(found, strict=True)
    except ValidationError as error:
        raise damaged(where, first_fault(error), todo) from None
    labels = [spec.label for spec in config.methods]
    if twice := next((label for at, label in enumerate(labels) if label in labels[:at]), None):
        raise damaged(where, f"method '{twice}' occurs twice", todo)
    if not all(label.isprintable() for label in labels):
        raise damaged(where, "the label of a method has unprintable characters", todo)
    return config


def read_summary(folder: RunFolder, config: RunConfig) -> RunSummary | None:
    """The summary of a run, None if there is none yet; in an unfinished sweep it may lack methods."""
    summary = folder.summary()
    if summary is None:
        return None
    rows, labels = [row.method for row in summary.rows], {spec.label for spec in config.methods}
    if len({*rows}) < len(rows) or not labels.issuperset(rows):
        raise _mixed(folder, "its summary has other methods than run.json")
    if config.base is None and any(row.over_base for row in summary.rows):
        raise _mixed(folder, "its summary has a base model, and run.json has none")
    return summary


def summary_so_far(folder: RunFolder, config: RunConfig, records: Iterable[RequestRecord]) -> RunSummary:
    """The figures of an unfinished run."""
    try:
        return summarise(RunContents.of(folder, config, records))
    except ValidationError as error:
        raise damaged(folder.requests_path, first_fault(error), REPEAT) from None


def whole_records(
    folder: RunFolder, config: RunConfig, *, traces: bool = True, scored: bool = True
) -> Iterator[RequestRecord]:
    """Yield the requests of a run, checked against the run's other files.

    Raises UsageError for a record that occurs twice, contradicts itself or the other files, or has an unknown method;
    then the requests before it must not be used either.
    """
    sums = {spec.label: _Sums() for spec in config.methods}
    keys: set[str] = set()
    # In an unfinished run an answer may have been decoded again after its attached files were written.
    attached = Attached(folder.path) if folder.finished else None
    for record in folder.records():
        fault = _misplaced(record, sums, keys) or (attached.contradiction(record) if attached else "")
        if fault:
            raise UsageError(f"{folder.path} is damaged or mixed: {one_line(record.request_id)} {fault}; {REPEAT}")
        keys.add(record.request_id)
        line = attached.verdicts.get(record.request_id) if attached and scored else None
        sums[record.method] = sums[record.method].with_(record, line)
        yield record if traces else record.untraced()
    if folder.finished and (fault := _miscounted(read_summary(folder, config), sums, scored)):
        raise _mixed(folder, fault)


def _mixed(folder: RunFolder, fault: str) -> UsageError:
    return UsageError(f"{folder.path} is cut off or mixed: {fault}; {REPEAT}")


class _Sums(NamedTuple):
    """Sums over a method's requests, which reveal truncated files and files of another run."""

    requests: int = 0
    tokens: int = 0
    forwards: int = 0
    scored: int = 0
    passed: int = 0

    def with_(self, record: RequestRecord, line: VerdictLine | None) -> _Sums:
        return _Sums(
            self.requests + 1,
            self.tokens + record.output_tokens,
            self.forwards + record.target_forwards,
            self.scored + (line is not None),
            self.passed + (line is not None and line.passed),
        )


def _misplaced(record: RequestRecord, methods: Container[str], keys: Container[str]) -> str:
    """Why a record cannot belong to this run; empty if it can."""
    if record.method not in methods:
        return "has a method that is not in the run"
    if record.request_id != request_key(record.method, record.prompt_id, record.repeat, record.turn):
        return "has an id that differs from its fields"
    if record.request_id in keys:
        return "occurs twice"
    if not len(record.output_ids) == record.output_tokens == record.first_tokens + sum(record.accepted_lengths):
        return "has another number of tokens than its forwards emitted"
    if min(record.output_ids, default=0) < 0:
        return "has a negative token id"
    if min(record.accepted_lengths, default=0) < 0:
        return "has a forward with a negative number of tokens"
    times = (record.ttft_s, record.decode_s, record.latency_s, record.prefill_share_s, record.decode_share_s)
    if not (min(times) >= _SHORTEST_S and max(times) <= _LONGEST_S) and not all(map(_is_a_time, times)):
        return "has an invalid time"
    if record.latency_s < max(record.ttft_s, record.decode_s) * (1 - _ROUNDING):
        return "ended before its own decoding did"
    steps = record.step_s
    if steps is not None and (len(steps) != len(record.accepted_lengths) or min(steps, default=0) < 0):
        return "has step times that do not match its steps"
    if record.phases_s is not None and (
        record.phases_s.keys() != {*PHASES} or len({len(steps) for steps in record.phases_s.values()}) > 1
    ):
        return "has phases that do not match its steps"
    return ""


_ROUNDING = 1e-6  # relative, of sums of seconds

#: Shorter and longer times are impossible; within these bounds no sum or ratio of times overflows.
_SHORTEST_S, _LONGEST_S = 1e-12, 1e9


def _is_a_time(seconds: float) -> bool:
    return seconds == 0 or _SHORTEST_S <= seconds <= _LONGEST_S


def _miscounted(summary: RunSummary | None, sums: Mapping[str, _Sums], scored: bool) -> str:
    """How a finished run's summary differs from the sums of its requests; empty if it does not."""
    if summary is None:
        return "it is finished but has no summary"
    written = {row.method: _sums_of(row) for row in summary.rows}
    if {*written} != {*sums}:
        return "its summary has other methods than run.json"
    for label, found in sums.items():
        compared = _Sums._fields if scored and written[label].scored and found.scored else _Sums._fields[:3]
        for what, here, there in zip(compared, found, written[label], strict=False):
            # A sweep's summary covers the tuning prompts; it has more requests.
            if here < there or (here > there and summary.sweep is None):
                return f"it holds {here} {what} of {label} but its summary has {there}"
    return ""


def _sums_of(row: MethodSummary) -> _Sums:
    right = row.accuracy
    counted = (right.scored, right.passed) if right else (0, 0)
    return _Sums(row.requests, row.tokens, row.target_forwards, *counted)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable the cyclic garbage collector, which would take most of the time by scanning all records repeatedly."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def read_projections(folder: RunFolder) -> list[dict[str, Any]]:
    """Read the files that ``--project`` wrote into a run's folder."""
    found, todo = [], "delete it, or run with --project again"
    for file in sorted(folder.path.glob(PROJECTION.format("*"))):
        content = read_json_object(file, todo)
        in_64_bits(content, file, todo)
        validate(_Projection, content, file, todo)
        found.append(content)
    return found


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Band(_Part):
    value: float
    low: float
    high: float


class _ProjectedRow(_Part):
    decode_tok_s: _Band
    speedup: _Band = _Band(value=1, low=1, high=1)


class _Projection(_Part):
    """The parts of a projection that are shown."""

    gpu: str
    device: str
    rows: dict[str, _ProjectedRow]


def write_projection(folder: RunFolder, gpu: str, content: Mapping[str, Any]) -> None:
    """Write a projection for :func:`read_projections`."""
    write_json_atomic(folder.path / PROJECTION.format(gpu), dict(content))


def read_whole(path: Path) -> ReadRun:
    """Read a finished run whose files agree; otherwise raise UsageError with the folder."""
    folder = RunFolder.load(path)
    if not folder.finished:
        raise UsageError(f"{path} is not finished; repeat its command to go on")
    if folder.summary() is None:
        raise UsageError(f"{path} has no summary.json; restore it or repeat the run")
    read = read_run(path)
    try:
        _check(read)
    except UsageError as error:
        raise UsageError(f"{path} cannot be used: {error}; restore it or repeat the run") from error
    return read


def _check(read: ReadRun) -> None:
    if not read.summary.complete:
        raise UsageError("it does not have all requests of its configuration")
    prompts: dict[str, list[str]] = {spec.label: [] for spec in read.config.methods}
    for record in read.records:
        prompts[record.method].append(record.prompt_id)
    task = read.config.task
    expected = (task.requests or task.prompts) * read.config.repeats
    failed = {row.method for row in read.summary.rows if row.failed}
    for label, asked in prompts.items():
        if label not in failed and (len(asked) != expected or len({*asked}) != task.prompts):
            raise UsageError(f"requests.jsonl holds {len(asked)} requests of {label}, but run.json has {expected}")
    if strange := read.verdicts.keys() - {record.request_id for record in read.records}:
        raise UsageError(f"verdicts.jsonl scores {one_line(min(strange))}, which is not in requests.jsonl")
