"""Reading runs that figures are to rest on: whole, and every file of them of the same run, or not at all. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from specbench.errors import UsageError
from specbench.reading import ReadRun, read_run
from specbench.records import RequestRecord
from specbench.storage import RunFolder


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
        raise UsageError(f"{path} has no summary.json, or an empty one; restore it or repeat the run")
    read = read_run(path)
    try:
        _check(read)
    except UsageError as error:
        raise UsageError(f"{path} cannot be used: {error}; restore it or repeat the run") from error
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path}/summary.json is damaged ({type(error).__name__}: {error}); repeat the run") from error
    return read


def _check(read: ReadRun) -> None:
    if not read.summary["complete"]:
        raise UsageError("it does not hold all the requests of its configuration")
    mine: dict[str, list[RequestRecord]] = {spec.label: [] for spec in read.config.methods}
    for record in read.records:
        _check_times(record)
        mine[record.method].append(record)
    expected = (read.config.task.requests or read.config.task.prompts) * read.config.repeats
    prompts = read.config.task.prompts
    rows = {row["method"]: row for row in read.summary["rows"]}
    for label, records in mine.items():
        if len(records) != expected or len({record.prompt_id for record in records}) != prompts:
            raise UsageError(f"requests.jsonl holds {len(records)} requests of {label}, run.json says {expected}")
        _check_sums(rows[label]["requests"], rows[label]["tokens"], label, records)
    if strange := read.verdicts.keys() - {record.key for record in read.records}:
        raise UsageError(f"verdicts.jsonl judges {min(strange)}, which requests.jsonl does not hold")


def _check_times(record: RequestRecord) -> None:
    times = (record.ttft_s, record.decode_s, record.e2e_s, record.busy_prefill_s, record.busy_decode_s)
    if not all(math.isfinite(seconds) and seconds >= 0 for seconds in times):
        raise UsageError(f"requests.jsonl: {record.key} has a time that is none")


def _check_sums(requests: int, tokens: int, label: str, records: Sequence[RequestRecord]) -> None:
    """Whether a summary's row is that of these records: another run's has other sums."""
    if (requests, tokens) != (len(records), sum(record.n_out for record in records)):
        raise UsageError(f"summary.json counts other requests or tokens of {label} than requests.jsonl")
