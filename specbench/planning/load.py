"""Parse the options of open-loop load: rates, arrival times, objectives."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.common import UsageError, parse_json, read_text
from specbench.planning.plan import EVENLY, split_names

if TYPE_CHECKING:
    from specbench.planning.plan import Plan
    from specbench.results import Load, LoadPoint

_NUMBER = r"\d{1,6}(?:\.\d{1,6})?"
_TIME = re.compile(rf"({_NUMBER})(ms|s)")
_OBJECTIVES = ("ttft", "tpot", "latency")
_FIX = "give one time per line, JSON lines with timestamp in ms, or a CSV with a column timestamp"


@dataclass(frozen=True)
class Arrivals:
    """When requests arrive; ``trace``: seconds of a trace's arrivals since its first, in order."""

    load: Load
    trace: tuple[float, ...] = ()


def plan_load(plan: Plan) -> Arrivals | None:
    """Return how requests of a plan arrive; None for a closed loop."""
    from specbench.results import Load, LoadPoint  # imported here to keep --help fast

    kind: Any = plan.arrivals if plan.arrivals in EVENLY else "trace"
    if not plan.loaded:
        unused = [f"--{name}" for name in ("arrivals", "slo") if name in plan.model_fields_set and getattr(plan, name)]
        if unused:
            raise UsageError(
                f"cannot use {unused[0]} without a rate of requests; add --rate 1,2,4 (requests per second)"
            )
        return None
    points = [] if plan.rate is None else parse_rates(plan.rate)
    trace: tuple[float, ...] = ()
    digest = None
    if kind == "trace":
        path = Path(plan.arrivals)
        if not path.exists():
            raise UsageError(
                f"--arrivals {plan.arrivals[:80]}: write poisson, constant, or the path of a file with times"
            )
        trace, digest = read_times(path)
        mean = (len(trace) - 1) / trace[-1]
        points = points or [LoadPoint(rate=float(f"{mean:.4g}"))]
        if any(point.end for point in points):
            raise UsageError(f"cannot use a ramp with the times of {plan.arrivals}; give rates such as --rate 1,2")
    slo: dict[Any, float] = parse_slo(plan.slo) if plan.slo else {}
    return Arrivals(Load(arrivals=kind, points=points, trace_sha256=digest, slo=slo), trace)


def parse_rates(text: str) -> list[LoadPoint]:
    """Parse ``1,2,4`` or ``1-8``, a ramp."""
    from specbench.results import LoadPoint

    found = []
    if not split_names(text):
        raise UsageError("--rate is empty; write requests per second, as in --rate 0.5,1,2")
    for each in split_names(text):
        match = re.fullmatch(rf"({_NUMBER})(?:-({_NUMBER}))?", each)
        if not match or not all(float(number) > 0 for number in match.groups() if number):
            raise UsageError(f"--rate {text}: write requests per second, as in --rate 0.5,1,2 or --rate 1-8 for a ramp")
        if match[2] and float(match[2]) == float(match[1]):
            raise UsageError(f"--rate {text}: {each} does not change; write {match[1]}")
        found.append(LoadPoint(rate=float(match[1]), end=float(match[2]) if match[2] else None))
    if len({str(point) for point in found}) < len(found):
        raise UsageError(f"--rate {text}: give each rate once, as in --rate 0.5,1,2")
    return found


def parse_slo(text: str) -> dict[str, float]:
    """Parse ``ttft=500ms,tpot=50ms`` to seconds."""
    found: dict[str, float] = {}
    for each in split_names(text):
        name, _, value = each.partition("=")
        match = _TIME.fullmatch(value)
        if re.fullmatch(_NUMBER, value):
            raise UsageError(f"--slo {text}: {value} has no unit; write {value}ms or {value}s")
        if name not in _OBJECTIVES or name in found or match is None or float(match[1]) == 0:
            raise UsageError(
                f"--slo {text}: write limits of {', '.join(_OBJECTIVES)}, as in --slo ttft=500ms,tpot=50ms"
            )
        found[name] = float(match[1]) * (1e-3 if match[2] == "ms" else 1.0)
    return found


def read_times(path: Path) -> tuple[tuple[float, ...], str]:
    """Return the arrival times of a file in seconds since the first, and the sha256 of its text.

    Each line is a number of seconds, a JSON object whose ``timestamp`` is in milliseconds (Mooncake's and aiperf's
    traces), or a row of a CSV with a column ``timestamp`` of seconds or of dates (BurstGPT, Azure).
    """
    text = read_text(path, _FIX)
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and lines[0].lstrip().startswith("{"):
        times = [_json_time(path, number, line) / 1e3 for number, line in enumerate(lines, 1)]
    else:
        rows = [*csv.reader(lines)]
        names = [name.strip().lower() for name in rows[0]] if rows else []
        column, skip = (names.index("timestamp"), 1) if "timestamp" in names else (0, 0)
        times = [_time(path, number, row, column) for number, row in enumerate(rows[skip:], 1 + skip)]
    if times != sorted(times):
        raise UsageError(f"cannot use {path} as arrivals: its times are not in order; sort them")
    if len(times) < 2 or times[-1] == times[0]:
        raise UsageError(f"cannot use {path} as arrivals: it has fewer than two times; {_FIX}")
    return tuple(time - times[0] for time in times), hashlib.sha256(text.encode()).hexdigest()


def _json_time(path: Path, number: int, line: str) -> float:
    content = parse_json(line.encode(), f"{path} line {number}", _FIX)
    found = content.get("timestamp") if isinstance(content, dict) else None
    return _checked(path, number, line, found)


def _time(path: Path, number: int, row: Sequence[str], column: int) -> float:
    written = row[column].strip() if len(row) > column else ""
    found: Any = None
    try:
        found = float(written)
    except ValueError:
        with suppress(ValueError):
            found = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", written)).timestamp()
    return _checked(path, number, ",".join(row), found)


def _checked(path: Path, number: int, line: str, found: Any) -> float:
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not math.isfinite(found):
        raise UsageError(f"cannot read a time in {path} line {number} ({json.dumps(line[:40])}); {_FIX}")
    return float(found)
