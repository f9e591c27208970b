"""Runs as tables for other tools: a row per request or per method, units in the names of the columns.

What a run says of itself stands in every row, so that tables of several runs are one below the other. A column that no
row has a value for is left out of ``option_``, ``measure_``, ``gpu_`` and ``correct_`` columns, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from specbench.records import BASELINE, MethodSpec, RequestRecord, RunConfig

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
