"""Reading a run back from its files. No torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specbench.errors import UsageError
from specbench.judging.records import read_judgments
from specbench.judging.scores import scores
from specbench.records import RequestRecord, RunConfig
from specbench.scoring.launch import read_metrics, read_verdicts
from specbench.scoring.score import VERDICTS
from specbench.storage import RunFolder
from specbench.summary import summarise

#: File name of a projection onto another GPU.
PROJECTION = "projection-{}.json"


@dataclass(frozen=True)
class ReadRun:
    """A run as it is on disk; of an unfinished one, the summary of what there is so far.

    ``judged`` is :func:`specbench.judging.scores.scores`, empty where no judge was asked; ``projections`` the contents
    of what ``--project`` wrote.
    """

    run: dict[str, Any]
    config: RunConfig
    records: list[RequestRecord]
    verdicts: dict[str, bool]
    summary: dict[str, Any]
    judged: list[dict[str, Any]]
    projections: list[dict[str, Any]] = field(default_factory=list)


def read_run(path: Path) -> ReadRun:
    """Reads a run folder.

    Raises:
        UsageError: not a run folder, damaged, or written by a newer version.
    """
    folder = RunFolder.load(path)
    config, records = read_config(folder), list(each_record(folder))
    try:
        verdicts, metrics = read_verdicts(path), read_metrics(path)
    except (ValueError, KeyError, TypeError) as error:
        again = f"python -m specbench.scoring {path}"
        raise UsageError(f"{path / VERDICTS} is damaged ({error}); {again} writes it anew") from error
    summary = folder.summary() or summarise(config, records, verdicts or None, metrics=metrics)
    judgments = read_judgments(path)
    judged = scores(judgments, [spec.label for spec in config.methods])
    return ReadRun(folder.run, config, records, verdicts, summary, judged, read_projections(path))


def read_config(folder: RunFolder) -> RunConfig:
    """The configuration of a run.

    Raises:
        UsageError: it does not fit; names the field.
    """
    try:
        return RunConfig.model_validate({k: v for k, v in folder.run.items() if k in RunConfig.model_fields})
    except ValidationError as error:
        raise _damaged(folder, error) from error


def each_record(folder: RunFolder) -> Iterator[RequestRecord]:
    """The requests of a run, one after the other: a hundred thousand of them take a gigabyte together.

    Raises:
        UsageError: one does not fit; names the field.
    """
    try:
        for line in folder.requests():
            yield RequestRecord.model_validate(line)
    except ValidationError as error:
        raise _damaged(folder, error) from error


def _damaged(folder: RunFolder, error: ValidationError) -> UsageError:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return UsageError(f"{folder.path} is damaged: field '{where}': {first['msg']}; run it again")


def read_projections(path: Path) -> list[dict[str, Any]]:
    """What ``--project`` wrote beside a run.

    Raises:
        UsageError: damaged.
    """
    found = []
    for file in sorted(path.glob(PROJECTION.format("*"))):
        try:
            content = json.loads(file.read_bytes())
            if not isinstance(content["rows"], dict):
                raise TypeError("its rows are no mapping")
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{file} is damaged ({error}); delete it, or run with --project again") from error
        found.append(content)
    return found
