"""Frames: runs as pandas tables, and as CSV, JSON, Markdown or LaTeX for other tools. No torch.

A row per request or per method, units in the names of the columns. What a run says of itself stands in every row, so
that tables of several runs are one below the other. A column that no row has a value for is left out of ``option_``,
``measure_``, ``gpu_`` and ``correct_`` columns, and nothing else is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import pandas as pd

from specbench.common import UsageError
from specbench.results import BASELINE, RequestRecord, RunConfig, RunFolder, read_run
from specbench.results.read import read_config, read_scores, whole_records
from specbench.results.schema import MethodSpec
from specbench.sweeps import is_sweep, read_head


def load(*folders: str | Path, text: bool = False) -> pd.DataFrame:
    """The requests of runs, a row each.

    Args:
        folders: run folders and sweep folders; of a sweep, every run in it (``c1``, ``c2``, …), named ``SWEEP/c1``.
        text: add the answers, as a column ``text``.

    Returns:
        The columns of :data:`REQUEST`, times in seconds, then ``option_NAME`` for the
        options of the methods, ``correct_NAME`` for further metrics, ``measure_NAME`` for figures of the methods' own
        and ``gpu_NAME`` where the GPU told something. Plain decoding is the rows with method "ar". Unfinished runs are
        as they stand.

    Raises:
        UsageError: none is given; one is no run, is given twice, damaged, cut off, mixed or of a newer version.
    """
    return table((row for name, path in _runs(folders) for row in _requests(name, path, text)), REQUEST)


def load_methods(*folders: str | Path) -> pd.DataFrame:
    """The summaries of runs, a row per method; columns as in :data:`METHOD`.

    Args:
        folders, and what is raised: as for :func:`load`.
    """
    return table((row for name, path in _runs(folders) for row in _methods(name, path)), METHOD)


def _runs(folders: Iterable[str | Path]) -> Iterator[tuple[str, Path]]:
    """The run folders with their names, each name and each folder once."""
    found: dict[str, Path] = {}
    for path in map(Path, folders):
        for name, place in _inside(path):
            if name in found:
                again = found[name].resolve() == place.resolve()
                raise UsageError(f"{place} is given twice" if again else f"{place} and {found[name]} share a name")
            found[name] = place
    if not found:
        raise UsageError("no run is given; name folders that specbench run or sweep wrote")
    yield from found.items()


def _inside(path: Path) -> Iterator[tuple[str, Path]]:
    name = path.resolve().name
    if not is_sweep(path):
        yield name, path
        return
    places = [path / f"c{count}" for count in read_head(path)["concurrency"] if (path / f"c{count}").is_dir()]
    if not places:
        raise UsageError(f"{path} has lost its runs (c1, …); repeat the sweep's command")
    yield from ((f"{name}/{place.name}", place) for place in places)


def _requests(name: str, path: Path, text: bool) -> Iterator[Row]:
    folder = RunFolder.load(path)
    config = read_config(folder)
    verdicts, metrics = read_scores(path)
    runs = Runs(name, config, _device(folder))
    for record in whole_records(folder, config, traces=False):
        row = runs.request(record, verdicts, metrics)
        yield {**row, "text": record.text} if text else row


def _methods(name: str, path: Path) -> Iterator[Row]:
    read = read_run(path, traces=False)
    runs = Runs(name, read.config, _device(RunFolder.load(path)))
    for row in read.summary["rows"]:
        yield runs.method(row, bool(read.summary["complete"]))


def _device(folder: RunFolder) -> str:
    """What the environment calls the device; a run that says nothing of it has its kind at least."""
    device = folder.run.get("environment", {}).get("device", {})
    return str(device.get("name") or folder.run["model"]["device"])


_DIGITS = 6  # of figures that people read; CSV and JSON have all
_BROKEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")  # would end a row of a table for people


def write(frame: pd.DataFrame, to: str, file: TextIO) -> None:
    """Writes a table in one of the :data:`FORMATS`.

    Args:
        frame: as :func:`specbench.load` returns it.
        to: name of the format.
        file: what is written to.
    """
    FORMATS[to](frame, file)


def _csv(frame: pd.DataFrame, file: TextIO) -> None:
    """RFC 4180 but for its line ends; floats as they are, missing values empty."""
    frame.to_csv(file, index=False, lineterminator="\n")


def _json(frame: pd.DataFrame, file: TextIO) -> None:
    """An array of objects, one a line; missing values are null."""
    between = "["
    for row in _rows(frame):
        file.write(f"{between}\n{json.dumps(row, allow_nan=False)}")
        between = ","
    file.write("[]\n" if between == "[" else "\n]\n")


def _markdown(frame: pd.DataFrame, file: TextIO) -> None:
    """A pipe table; numbers to the right."""
    numbers = {name: _is_number(frame[name]) for name in frame.columns}
    lines = [list(frame.columns), ["---:" if numbers[name] else "---" for name in frame.columns]]
    lines += [[_cell(value) for value in row.values()] for row in _rows(frame)]
    for cells in lines:
        file.write(f"| {' | '.join(cells)} |\n")


def _latex(frame: pd.DataFrame, file: TextIO) -> None:
    """A booktabs table, to be set with ``\\usepackage{booktabs}``."""
    columns = "".join("r" if _is_number(frame[name]) else "l" for name in frame.columns)
    shown = pd.DataFrame([list(map(_plain, row.values())) for row in _rows(frame)], columns=frame.columns, dtype=object)
    file.write(shown.to_latex(index=False, escape=True, column_format=columns))


def _rows(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Rows of Python's own values; None where there is none."""
    columns = [frame[name].astype(object).where(frame[name].notna(), None) for name in frame.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(map(str, frame.columns), values, strict=True))


def _is_number(column: pd.Series[Any]) -> bool:
    return bool(pd.api.types.is_numeric_dtype(column)) and not pd.api.types.is_bool_dtype(column)


def _plain(value: Any) -> str:
    """A value in one line, as people read it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.{_DIGITS}g}" if isinstance(value, float) else _BROKEN.sub(" ", str(value))


def _cell(value: Any) -> str:
    """The same where a pipe would end the cell, and a tag be taken for one."""
    return re.sub(r"([\\|<`*_\[\]])", r"\\\1", _plain(value)) if isinstance(value, str) else _plain(value)


FORMATS: Mapping[str, Callable[[pd.DataFrame, TextIO], None]] = {
    "csv": _csv,
    "json": _json,
    "md": _markdown,
    "latex": _latex,
}


Row = dict[str, Any]

_RUN = {
    "run": "string", "model": "string", "dtype": "string", "device": "string", "task": "string",
    "task_version": "int64", "temperature": "float64", "concurrency": "int64", "max_new_tokens": "int64",
    "method": "string", "method_name": "string", "simulated": "bool",
}  # fmt: skip

#: Type of each column of a table of requests that is always there. ``tok_s`` is of decoding, ``tpf`` without the
#: prefill's token, both as a run's table defines them; ``correct`` is missing where nothing was judged.
REQUEST = {
    **_RUN,
    "prompt": "string", "repeat": "int64", "turn": "int64", "category": "string", "n_prompt": "int64",
    "n_out": "int64", "stop_reason": "string", "forwards": "int64", "draft_forwards": "int64", "rows": "int64",
    "n_overshoot": "int64", "n_stop_tail": "int64", "tpf": "float64", "tok_s": "float64", "ttft_s": "float64",
    "decode_s": "float64", "e2e_s": "float64", "busy_prefill_s": "float64", "busy_decode_s": "float64",
    "correct": "boolean",
}  # fmt: skip

#: The same of a table of methods.
METHOD = {
    **_RUN,
    "prompts": "int64", "requests": "int64", "tokens": "int64", "target_forwards": "int64", "draft_forwards": "int64",
    "tpf": "float64", "tok_s": "float64", "e2e_tok_s": "float64", "step_s": "float64", "ttft_median_s": "float64",
    "rows_per_step": "float64", "speedup": "float64", "speedup_low": "float64", "speedup_high": "float64",
    "speedup_verdict": "string", "e2e_speedup": "float64", "e2e_speedup_low": "float64", "e2e_speedup_high": "float64",
    "step_ratio": "float64", "accuracy": "float64", "accuracy_low": "float64", "accuracy_high": "float64",
    "scored": "Int64", "lossless": "string", "truncated": "int64", "complete": "bool",
}  # fmt: skip


class Runs:
    """The columns that a run's configuration gives to every row of one of its methods.

    Args:
        name: what the run is called.
        config: its configuration.
        device: name of the device; the kind of device where it is not known.
    """

    def __init__(self, name: str, config: RunConfig, device: str) -> None:
        self._shared = config.concurrency > 1
        self._of = {spec.label: self._columns(name, config, device, spec) for spec in config.methods}

    @staticmethod
    def _columns(name: str, config: RunConfig, device: str, spec: MethodSpec) -> Row:
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

    def request(
        self, record: RequestRecord, verdicts: Mapping[str, bool], metrics: Mapping[str, Mapping[str, bool]]
    ) -> Row:
        """The row of a request; times as in :class:`RequestRecord`."""
        seconds = record.decoding_s(self._shared)
        gpu = record.gpu.model_dump(exclude={"throttled"}) if record.gpu else {}
        return {
            **self._of[record.method],
            "prompt": record.prompt_id,
            **{name: getattr(record, name) for name in _OF_A_RECORD},
            "tpf": _ratio(record.n_out - 1, record.forwards),
            "tok_s": _ratio(record.n_out - 1, seconds),
            "correct": verdicts.get(record.key),
            **{f"correct_{name}": marks.get(record.key) for name, marks in metrics.items()},
            **{f"measure_{name}": value for name, value in record.measures.items()},
            **{f"gpu_{name}": value for name, value in gpu.items()},
        }

    def method(self, row: Mapping[str, Any], complete: bool) -> Row:
        """The row of a method, from a row of ``summary.json``."""
        accuracy = row["accuracy"] or {}
        found = {name: row[name] for name in METHOD if name in row and name not in _NESTED}
        return {
            **self._of[row["method"]],
            **found,
            **_interval("speedup", row["speedup"]),
            "speedup_verdict": (row["speedup"] or {}).get("verdict") if row["method"] != BASELINE else None,
            **_interval("e2e_speedup", row["e2e_speedup"]),
            **_interval("accuracy", accuracy),
            "scored": accuracy.get("scored"),
            "lossless": (row["lossless"] or {}).get("verdict"),
            "complete": complete,
            **{f"accuracy_{name}": (score or {}).get("value") for name, score in row.get("metrics", {}).items()},
            **{f"measure_{name}": value for name, value in row.get("measures", {}).items()},
        }


_OF_A_RECORD = [name for name in REQUEST if name in RequestRecord.model_fields and name != "method"]
_NESTED = {"method", "speedup", "e2e_speedup", "accuracy", "lossless", "simulated"}


def table(rows: Iterable[Row], columns: Mapping[str, Any]) -> pd.DataFrame:
    """A typed table.

    Args:
        rows: in order; they are taken one by one.
        columns: type of each column that is there in any case. Those found besides follow them, named alike together.

    Returns:
        A missing figure is nan, a missing word, flag or count ``pd.NA``.
    """
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
    """Values of one type as such, with gaps; of several, as text would be, they stay as they are."""
    known = {type(value) for value in values if value is not None}
    if known <= {int, float} and float in known:
        return pd.array(values, dtype="float64")
    dtypes: Mapping[frozenset[type], Any] = {
        frozenset({bool}): "boolean", frozenset({int}): "Int64", frozenset({str}): "string",
    }  # fmt: skip
    return pd.array(values, dtype=dtypes.get(frozenset(known), "object"))


def _interval(name: str, figure: Mapping[str, Any] | None) -> Row:
    found = figure or {}
    return {name: found.get("value"), f"{name}_low": found.get("low"), f"{name}_high": found.get("high")}


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None
