"""Read guidellm's JSON report.

Written from guidellm 0.8.1: benchmark/schemas/{report,benchmark,metrics}.py and schemas/base/request_stats.py. Its
``inter_token_latency_ms`` is our TPOT; its ``time_per_output_token_ms`` includes the time to the first token and is not
read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from specbench.common import damaged, validate
from specbench.results.imports.foreign import TODO, Foreign, Measured, ToolFile, build, facts
from specbench.results.schema import Count, Figure

#: Our times -> the tool's names, and the seconds of their units.
_TIMES = {
    "ttft_s": ("time_to_first_token_ms", 1e-3),
    "tpot_s": ("inter_token_latency_ms", 1e-3),
    "latency_s": ("request_latency", 1.0),
}
_LEVELS = ("p50", "p90", "p95", "p99")


class _Distribution(Foreign):
    mean: Figure
    total_sum: Figure
    percentiles: Mapping[str, Figure] = {}


class _ByState(Foreign):
    successful: _Distribution | None = None


class _Totals(Foreign):
    successful: Count
    errored: Count
    incomplete: Count


class _Metrics(Foreign):
    request_totals: _Totals
    requests_per_second: _ByState | None = None
    request_goodput: _ByState | None = None
    request_latency: _ByState | None = None
    time_to_first_token_ms: _ByState | None = None
    inter_token_latency_ms: _ByState | None = None
    output_token_count: _ByState | None = None
    output_tokens_per_second: _ByState | None = None

    def successful(self, name: str) -> _Distribution | None:
        """The distribution of a metric over the requests that were answered."""
        found: _ByState | None = getattr(self, name)
        return found.successful if found else None


class _Timings(Foreign):
    resolve_start: Figure | None = None
    resolve_end: Figure | None = None
    request_start: Figure | None = None
    first_token_iteration: Figure | None = None
    last_token_iteration: Figure | None = None
    request_end: Figure | None = None

    def overlaps(self, start: float, end: float) -> bool:
        """Whether the request ran in a window of time, as guidellm decides which requests its metrics count."""
        ended = self.resolve_end if self.request_end is None else self.request_end
        began = self.resolve_start if self.request_start is None else self.request_start
        return ended is not None and ended >= start and (ended if began is None else began) <= end


class _Info(Foreign):
    timings: _Timings


class _Request(Foreign):
    request_id: str
    request_args: str | None = None
    info: _Info
    prompt_tokens: Count | None = None
    output_tokens: Count | None = None


class _Requests(Foreign):
    successful: tuple[_Request, ...] | None = None
    errored: tuple[_Request, ...] | None = None
    incomplete: tuple[_Request, ...] | None = None


class _Config(Foreign):
    strategy: Mapping[str, Any]
    slo: Mapping[str, Any] | None = None
    backend: Mapping[str, Any] = {}


class _Warning(Foreign):
    message: str


class _Benchmark(Foreign):
    config: _Config
    metrics: _Metrics
    requests: _Requests
    warnings: tuple[_Warning, ...] = ()
    start_time: Figure
    end_time: Figure


class _Metadata(Foreign):
    guidellm_version: str


class _Report(Foreign):
    metadata: _Metadata
    benchmarks: tuple[_Benchmark, ...]


def is_mine(content: Mapping[str, Any]) -> bool:
    """Whether an object is a report of guidellm."""
    return "benchmarks" in content


def read(file: ToolFile, label: str) -> list[Measured]:
    """A row per benchmark of the report."""
    report = validate(_Report, file.objects[0], file.path, TODO)
    if not report.benchmarks:
        raise damaged(file.path, "it has no benchmarks", TODO)
    several, version = len(report.benchmarks) > 1, report.metadata.guidellm_version
    return [
        _read(file, each, version, f"{label}@{at}" if several else label)
        for at, each in enumerate(report.benchmarks, 1)
    ]


def _read(file: ToolFile, found: _Benchmark, version: str, label: str) -> Measured:
    metrics, totals = found.metrics, found.metrics.request_totals
    times = {}
    for name, (theirs, unit) in _TIMES.items():
        if time := metrics.successful(theirs):
            levels = {level: unit * time.percentiles[level] for level in _LEVELS if level in time.percentiles}
            times[name] = {"mean": unit * time.mean, **levels}
    tokens, speed = metrics.successful("output_token_count"), metrics.successful("output_tokens_per_second")
    rates = {name: metrics.successful(name) for name in ("requests_per_second", "request_goodput")}
    row = {
        "label": label,
        "tool": "guidellm",
        "version": version,
        "files": {file.path.name: file.sha256},
        "model": str(found.config.backend.get("model") or ""),
        "load": {**facts(found.config.strategy), **{f"slo {k}": v for k, v in facts(found.config.slo or {}).items()}},
        "completed": totals.successful,
        "failed": totals.errored,
        "unfinished": totals.incomplete,
        "output_tokens": None if tokens is None else round(tokens.total_sum),
        "output_tok_s": speed and speed.mean,
        "times": times,
        "figures": {name: rate.mean for name, rate in rates.items() if rate},
        "remarks": [each.message for each in found.warnings],
    }
    held = list(_requests(found))
    sampled = len(held) < totals.successful + totals.errored + totals.incomplete  # --metrics sample_size
    return build(row, [] if sampled else held, file.path)


def _requests(found: _Benchmark) -> Iterator[dict[str, Any]]:
    """The requests without those of the warm-up and the cool-down, which the report holds, too."""
    held, window = found.requests, (found.start_time, found.end_time)
    states = {"completed": held.successful, "failed": held.errored, "unfinished": held.incomplete}
    every = [(state, each, each.info.timings) for state, some in states.items() for each in some or ()]
    every = [one for one in every if one[2].overlaps(*window)]
    first = min((times.request_start for *_, times in every if times.request_start is not None), default=0.0)
    for state, each, times in every:
        sent = each.request_args
        yield {
            "prompt": each.request_id if sent is None else hashlib.sha256(sent.encode()).hexdigest(),
            "state": state,
            "prompt_tokens": each.prompt_tokens,
            "output_tokens": each.output_tokens,
            "start_s": _between(first, times.request_start),
            "ttft_s": _between(times.request_start, times.first_token_iteration),
            "decode_s": _between(times.first_token_iteration, times.last_token_iteration),
            "latency_s": _between(times.request_start, times.request_end),
        }


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
