"""Load runs as pandas tables in long form, a row per request or per method; column names contain the units.

Columns are the fields of :class:`RequestRecord` and :class:`MethodSummary`, see :mod:`specbench.results.columns`;
``option_``, ``measure_`` and ``correct_`` columns exist if a row has a value for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.analysis.model_quality import read_quality
from specbench.analysis.read import ReadRun, read_config, read_run, whole_records
from specbench.common import UsageError
from specbench.results import (
    BASELINE,
    MODELS_QUALITY,
    AtPosition,
    MethodSpec,
    MethodSummary,
    RequestRecord,
    RunConfig,
    RunFolder,
    campaign_runs,
    cells_of,
    columns_of,
    is_campaign,
    is_sweep,
    known_text,
    part_folders,
    read_scores,
)

_Row = dict[str, Any]

#: Columns from a run's configuration, in every row.
_RUN = {
    "run": "string", "model": "string", "dtype": "string", "device": "string", "task": "string",
    "task_version": "int64", "temperature": "float64", "concurrency": "int64", "max_new_tokens": "int64",
    "method": "string", "method_name": "string", "simulated": "bool",
}  # fmt: skip

#: Columns derived from a record. ``decode_tok_s`` counts the request's share of the engine's time, as a run's table
#: does; ``tpot_s`` is the time per token that the reader waits. ``correct`` is missing for answers without a score.
_DERIVED = {"tokens_per_forward": "float64", "decode_tok_s": "float64", "tpot_s": "float64", "correct": "boolean"}

#: Type of each column that a table of requests always has.
REQUEST: Mapping[str, str] = {**_RUN, **columns_of(RequestRecord), **_DERIVED}

#: The same for a table of methods.
METHOD: Mapping[str, str] = {**_RUN, **columns_of(MethodSummary), "complete": "bool"}

#: The same for a table of windows of answers.
POSITION: Mapping[str, str] = {**_RUN, **columns_of(AtPosition)}


def load(*folders: str | Path, text: bool = False) -> pd.DataFrame:
    """The requests of runs, a row each.

    Args:
        folders: folders of runs, sweeps and campaigns; a sweep adds every run in it (``c1``, ``c2``, …), named
            ``SWEEP/c1``, and a campaign every run of its sweeps.
        text: add the answers, as a column ``text``.

    Returns:
        The columns of :data:`REQUEST`, times in seconds, then ``option_NAME`` for the options of the methods,
        ``correct_NAME`` for further metrics, ``measure_NAME`` for the methods' own figures and ``gpu_NAME`` if GPU data
        were recorded. Rows with method "ar" are plain decoding. Unfinished runs have the requests finished so far.

    Raises:
        UsageError: no folder is given, or one is not a run, given twice, damaged or of a newer version.
    """
    return table((row for name, path in _runs(folders) for row in _requests(name, path, text)), REQUEST)


def load_methods(*folders: str | Path) -> pd.DataFrame:
    """The summaries of runs, a row per method; columns as in :data:`METHOD`, arguments as of :func:`load`."""
    rows = (row for name, path in _runs(folders) for row in _methods(name, path))
    quality = {model: found for path in map(Path, folders) for model, found in _quality(path).items()}
    return table((row | quality.get(row["model"], {}) for row in rows), METHOD)


def load_positions(*folders: str | Path) -> pd.DataFrame:
    """Speed by position in the answer, a row per method and window, see :mod:`specbench.analysis.positions`."""
    return table((row for name, path in _runs(folders) for row in _positions(name, path)), POSITION)


def _quality(path: Path) -> dict[str, _Row]:
    """Model -> ``quality_TASK``, the accuracy that a campaign measured with lm-eval."""
    found: dict[str, _Row] = {}
    for file in sorted((path / MODELS_QUALITY).glob("*.json")) if is_campaign(path) else ():
        measured = read_quality(file)
        parts = {each.task: each.metrics for each in measured.tasks}
        for name, metrics in (parts | {each.group: each.metrics for each in measured.groups}).items():
            values = {metric.metric: metric.value for metric in metrics if metric.value is not None}
            if values:
                best = next((each for each in ("acc", "exact_match") if each in values), next(iter(values)))
                found.setdefault(measured.model.name, {})[f"quality_{name}"] = values[best]
    return found


def _runs(folders: Iterable[str | Path]) -> Iterator[tuple[str, Path]]:
    """The run folders with their names; UsageError for duplicates."""
    found: dict[str, Path] = {}
    for path in map(Path, folders):
        for name, place in _inside(path):
            if name in found:
                again = os.path.realpath(found[name]) == os.path.realpath(place)
                raise UsageError(f"{place} is given twice" if again else f"{place} and {found[name]} share a name")
            found[name] = place
    if not found:
        raise UsageError("no run is given; name folders that specbench run or sweep wrote")
    yield from found.items()


def _inside(path: Path) -> Iterator[tuple[str, Path]]:
    name = os.path.basename(os.path.realpath(path))  # Path.resolve() raises for cyclic links
    if is_campaign(path):
        yield from ((f"{name}/{inner}", place) for inner, place in campaign_runs(path))
    elif is_sweep(path):
        yield from ((f"{name}/{place.name}", place) for _, place in part_folders(path))
    else:
        yield name, path


def _requests(name: str, path: Path, text: bool) -> Iterator[_Row]:
    folder = RunFolder.load(path)
    config = read_config(folder)
    verdicts, metrics = read_scores(path)
    shared = config.concurrency > 1
    of_method = _of_methods(name, config, _device(folder, config))
    for record in whole_records(folder, config, traces=False):
        key = record.request_id
        yield {
            **of_method[record.method],
            **cells_of(record),
            **({"rate": str(config.load.at(record.repeat))} if config.load else {}),
            "tokens_per_forward": record.tokens_per_forward,
            "decode_tok_s": record.decode_tok_s(shared),
            "tpot_s": record.tpot_s,
            "correct": verdicts.get(key),
            **{f"correct_{metric}": marks.get(key) for metric, marks in metrics.items()},
            **({"text": record.text} if text else {}),
        }


def _methods(name: str, path: Path) -> Iterator[_Row]:
    read = read_run(path, traces=False)
    of_method = _of_methods(name, read.config, _device(RunFolder.load(path), read.config))
    for row in read.summary.rows:
        found = {**of_method[row.method], **cells_of(row), "complete": read.summary.complete}
        # AR over itself is 1, so a verdict would be meaningless.
        missing = [column for column in found if column.endswith("_verdict")] if row.method == BASELINE else []
        yield found | dict.fromkeys(missing) | _further(read, row.method)


def _further(read: ReadRun, label: str) -> _Row:
    """A row's rating by each judge, and whether it is as fast as the fastest one of its run."""
    found: _Row = {}
    for scores in read.judged:
        if score := scores["methods"].get(label, {}).get("score"):
            found["rating" if len(read.judged) == 1 else f"rating_{scores['judge']['id']}"] = score
    if (fastest := read.summary.fastest) and fastest.conclusive and label in fastest.as_good:
        found["within_noise"] = True
    return found


def _positions(name: str, path: Path) -> Iterator[_Row]:
    read = read_run(path, traces=False)
    of_method = _of_methods(name, read.config, _device(RunFolder.load(path), read.config))
    for row in read.summary.rows:
        for at in row.positions:
            yield {**of_method[row.method], **cells_of(at)}


def _device(folder: RunFolder, config: RunConfig) -> str:
    """Name of the device, or its kind if the environment does not record a name."""
    return known_text(folder.run, "environment", "device", "name") or config.model.device


def _of_methods(name: str, config: RunConfig, device: str) -> dict[str, _Row]:
    """Method label -> the columns from the run's configuration."""
    return {spec.label: _columns(name, config, device, spec) for spec in config.methods}


def _columns(name: str, config: RunConfig, device: str, spec: MethodSpec) -> _Row:
    return {
        "run": name,
        "model": config.model.name,
        "dtype": config.model.dtype,
        "device": device,
        "task": config.task.name,
        "task_version": config.task.version,
        "temperature": config.sampling.temperature,
        "concurrency": config.concurrency,
        "max_new_tokens": config.max_new_tokens,
        "method": spec.label,
        "method_name": spec.name,
        "simulated": spec.label in config.simulated,
        **{f"option_{option}": value for option, value in spec.options.items()},
    }


def table(rows: Iterable[_Row], columns: Mapping[str, Any]) -> pd.DataFrame:
    """A typed table: the given columns, then those found in the rows; missing values are nan or ``pd.NA``."""
    values: dict[str, list[Any]] = {name: [] for name in columns}
    count = 0
    for count, row in enumerate(rows, 1):
        for name in row.keys() - values.keys():
            values[name] = [None] * (count - 1)
        for name, column in values.items():
            column.append(row.get(name))
    further = sorted(name for name in values if name not in columns and any(v is not None for v in values[name]))
    return pd.DataFrame(
        {name: pd.array(values[name], dtype=columns[name]) for name in columns}
        | {name: _typed(values[name]) for name in further},
        index=pd.RangeIndex(count),
    )


def _typed(values: list[Any]) -> Any:
    """A typed column if all values have one type, otherwise a column of objects."""
    known = {type(value) for value in values if value is not None}
    if known <= {int, float} and float in known:
        return pd.array(values, dtype="float64")
    dtypes: Mapping[frozenset[type], Any] = {
        frozenset({bool}): "boolean", frozenset({int}): "Int64", frozenset({str}): "string",
    }  # fmt: skip
    if dtype := dtypes.get(frozenset(known)):
        return pd.array(values, dtype=dtype)
    return pd.Series(values, dtype="object").array  # also works for values that are lists
