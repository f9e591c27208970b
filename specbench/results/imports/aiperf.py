"""Read aiperf's ``profile_export_aiperf.json`` and, next to it, ``profile_export.jsonl`` with a line per request.

Written from aiperf 0.13.0: common/models/{export_models,record_models}.py. Its ``inter_token_latency`` is our TPOT, and
its ``inter_chunk_latency`` our inter-token latency.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specbench.common import UsageError, damaged, validate
from specbench.results.imports.foreign import TODO, Foreign, Measured, ToolFile, build, facts
from specbench.results.schema import Count, Figure

_TIMES = {
    "ttft_s": "time_to_first_token",
    "tpot_s": "inter_token_latency",
    "itl_s": "inter_chunk_latency",
    "latency_s": "request_latency",
}
_FIGURES = ("request_throughput", "goodput", "total_token_throughput")
_UNITS = {"sec": 1.0, "ms": 1e-3}
_SUFFIX = "_aiperf"


class _Metric(Foreign):
    """A metric of all requests."""

    unit: str
    avg: Figure | None = None
    p50: Figure | None = None
    p90: Figure | None = None
    p95: Figure | None = None
    p99: Figure | None = None


class _Named(Foreign):
    name: str


class _Models(Foreign):
    items: tuple[_Named, ...] = ()


class _Config(Foreign):
    models: _Models = _Models()
    datasets: Any = None
    phases: tuple[Mapping[str, Any], ...] = ()
    slos: Mapping[str, Any] | None = None


class _RunInfo(Foreign):
    random_seed: int | None = None


class _Summary(Foreign):
    aiperf_version: str
    start_time: str | None = None
    input_config: _Config = _Config()
    run_info: _RunInfo = _RunInfo()
    is_complete: bool | None = None
    incomplete_reason: str | None = None
    was_cancelled: bool | None = None


class _Value(Foreign):
    """A metric of one request: a number, or one for each arrival."""

    value: Any
    unit: str


class _Metadata(Foreign):
    session_num: Count
    turn_index: Count | None = None
    request_start_ns: Count
    benchmark_phase: str
    was_cancelled: bool = False


class _Line(Foreign):
    metadata: _Metadata
    metrics: Mapping[str, _Value]
    error: Mapping[str, Any] | None = None


def is_mine(content: Mapping[str, Any]) -> bool:
    """Whether an object is a summary of aiperf, or the first line of its requests."""
    return "aiperf_version" in content or _is_line(content)


def _is_line(content: Mapping[str, Any]) -> bool:
    return isinstance(content.get("metadata"), dict) and "benchmark_phase" in content["metadata"]


def read(file: ToolFile, label: str) -> list[Measured]:
    """One row, from the summary and the lines; either file finds the other by its name."""
    stem = file.path.stem.removesuffix(_SUFFIX)
    lines, summary = file.path.with_name(f"{stem}.jsonl"), file.path.with_name(f"{stem}{_SUFFIX}.json")
    if _is_line(file.objects[0]):
        if not summary.exists():
            raise UsageError(f"cannot import {file.path}: {summary.name} is not next to it; copy it there")
        files = [ToolFile.read(summary), file]
    else:
        files = [file, *([ToolFile.read(lines)] if lines.exists() else [])]
    row = {"label": label, "tool": "aiperf", "files": {each.path.name: each.sha256 for each in files}}
    return [build({**row, **_summary(files[0])}, _requests(files[1]) if len(files) > 1 else [], file.path)]


def _summary(file: ToolFile) -> dict[str, Any]:
    content, known = file.objects[0], validate(_Summary, file.objects[0], file.path, TODO)
    metrics = {
        name: validate(_Metric, value, f"{file.path}, {name}", TODO)
        for name, value in content.items()
        if isinstance(value, dict) and "unit" in value
    }
    averages = {name: metric.avg for name, metric in metrics.items() if metric.avg is not None}
    times = {}
    for name, theirs in _TIMES.items():
        if found := metrics.get(theirs):
            levels = {"mean": found.avg, **{level: getattr(found, level) for level in ("p50", "p90", "p95", "p99")}}
            unit = _unit(found.unit, file.path)
            times[name] = {level: unit * time for level, time in levels.items() if time is not None}
    config, seed = known.input_config, known.run_info.random_seed
    measured = [facts(phase) for phase in config.phases if phase.get("kind") != "warmup"]
    sent = {name: text for phase in measured for name, text in phase.items() if name not in ("name", "kind")}
    ended = known.is_complete is not False and not known.was_cancelled
    return {
        "version": known.aiperf_version,
        "model": ", ".join(each.name for each in config.models.items),
        "begun": known.start_time or "",
        "load": {**sent, **{f"slo {name}": text for name, text in facts(config.slos or {}).items()}},
        "prompts_sha256": "" if seed is None else _hash([config.datasets, seed]),
        "completed": round(averages.get("request_count", 0)),
        "failed": round(averages.get("error_request_count", 0)),
        "output_tokens": round(averages["total_osl"]) if "total_osl" in averages else None,
        "output_tok_s": averages.get("output_token_throughput"),
        "times": times,
        "figures": {name: value for name, value in averages.items() if name in _FIGURES or "spec_decode" in name},
        "remarks": [] if ended else [f"not finished: {known.incomplete_reason or 'cancelled'}"],
    }


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _requests(file: ToolFile) -> list[dict[str, Any]]:
    lines = [validate(_Line, each, f"{file.path} line {at}", TODO) for at, each in enumerate(file.objects, 1)]
    measured = [line for line in lines if line.metadata.benchmark_phase == "profiling"]
    measured.sort(key=lambda line: (line.metadata.session_num, line.metadata.turn_index or 0))
    first = min((line.metadata.request_start_ns for line in measured), default=0)
    return [_request(line, first, file.path) for line in measured]


def _request(line: _Line, first: int, path: Path) -> dict[str, Any]:
    known, metrics = line.metadata, line.metrics
    times = {name: _seconds(metrics[theirs], theirs, path) for name, theirs in _TIMES.items() if theirs in metrics}
    latency, ttft = (times.get(name, [None])[0] for name in ("latency_s", "ttft_s"))
    tokens = {
        name: metrics[theirs].value
        for name, theirs in (("prompt_tokens", "input_sequence_length"), ("output_tokens", "output_sequence_length"))
        if theirs in metrics
    }
    return {
        "prompt": f"{known.session_num}/{known.turn_index or 0}",
        "state": "failed" if line.error else "unfinished" if known.was_cancelled else "completed",
        **tokens,
        "start_s": 1e-9 * (known.request_start_ns - first),
        "ttft_s": ttft,
        "decode_s": None if latency is None or ttft is None else max(0.0, latency - ttft),
        "latency_s": latency,
        "gaps_s": times.get("itl_s", []),
    }


def _seconds(found: _Value, name: str, path: Path) -> list[Any]:
    values = found.value if isinstance(found.value, list) else [found.value]
    if not values or not all(isinstance(value, int | float) for value in values):
        raise damaged(path, f"metric '{name}': not a number", TODO)
    return [value * _unit(found.unit, path) for value in values]


def _unit(name: str, path: Path) -> float:
    if name not in _UNITS:
        raise damaged(path, f"'{name}' is not a unit of time that aiperf 0.13.0 writes", TODO)
    return _UNITS[name]
