"""Parse the options of open-loop load: rates, arrival times, objectives."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from specbench.common import UsageError, parse_json, read_text
from specbench.planning.plan import split_names

if TYPE_CHECKING:
    from specbench.planning.plan import Plan
    from specbench.results import Load, LoadPoint

_NUMBER = r"\d{1,6}(?:\.\d{1,6})?"
_TIME = re.compile(rf"({_NUMBER})(ms|s)")
_OBJECTIVES = ("ttft", "tpot", "latency")
_SEEDS: dict[str, Literal["poisson", "constant"]] = {"poisson": "poisson", "constant": "constant"}
_FIX = "give one time per line, JSON lines with timestamp in ms, or a CSV with a column timestamp"


@dataclass(frozen=True)
class Arrivals:
    """When requests arrive; ``trace``: seconds of a trace's arrivals since its first, in order."""

    load: Load
    trace: tuple[float, ...] = ()


def plan_load(plan: Plan) -> Arrivals | None:
    """Return how requests of a plan arrive; None for a closed loop."""
    from specbench.results import Load, LoadPoint  # imported here to keep --help fast

    kind = _SEEDS.get(plan.arrivals)
    if plan.rate is None and kind is not None:
        unused = [f"--{name}" for name in ("arrivals", "slo") if name in plan.model_fields_set and getattr(plan, name)]
        if unused:
            raise UsageError(
                f"cannot use {unused[0]} without a rate of requests; add --rate 1,2,4 (requests per second)"
            )
        return None
    points = [] if plan.rate is None else parse_rates(plan.rate)
    trace: tuple[float, ...] = ()
    digest = None
    if kind is None:
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
    return Arrivals(Load(arrivals=kind or "trace", points=points, trace_sha256=digest, slo=slo), trace)


def parse_rates(text: str) -> list[LoadPoint]:
    """Parse ``1,2,4`` or ``1-8``, a ramp."""
    from specbench.results import LoadPoint

    found = []
    for each in split_names(text):
        match = re.fullmatch(rf"({_NUMBER})(?:-({_NUMBER}))?", each)
        if not match or not all(float(number) > 0 for number in match.groups() if number):
            raise UsageError(f"--rate {text}: write requests per second, as in --rate 0.5,1,2 or --rate 1-8 for a ramp")
        found.append(LoadPoint(rate=float(match[1]), end=float(match[2]) if match[2] else None))
    if not found or len({str(point) for point in found}) < len(found):
        raise UsageError(f"--rate {text}: give each rate once, as in --rate 0.5,1,2")
    return found


def parse_slo(text: str) -> dict[str, float]:
    """Parse ``ttft=500ms,tpot=50ms`` to seconds."""
    found: dict[str, float] = {}
    for each in split_names(text):
        name, _, value = each.partition("=")
        match = _TIME.fullmatch(value)
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
    column, divider = None, 1.0
    if lines and not lines[0].lstrip().startswith("{"):
        names = [name.strip().lower() for name in lines[0].split(",")]
        if "timestamp" in names:
            column, lines = names.index("timestamp"), lines[1:]
    elif lines:
        divider = 1e3
    times = [_time(path, number, line, column) / divider for number, line in enumerate(lines, 1 + (column is not None))]
    times.sort()
    if len(times) < 2 or times[-1] == times[0]:
        raise UsageError(f"cannot use {path} as arrivals: it has fewer than two times; {_FIX}")
    return tuple(time - times[0] for time in times), hashlib.sha256(text.encode()).hexdigest()


def _time(path: Path, number: int, line: str, column: int | None) -> float:
    found: Any = None
    if line.lstrip().startswith("{"):
        content = parse_json(line.encode(), f"{path} line {number}", _FIX)
        found = content.get("timestamp") if isinstance(content, dict) else None
    else:
        parts: Sequence[str] = line.split(",")
        written = parts[column or 0].strip() if len(parts) > (column or 0) else ""
        try:
            found = float(written)
        except ValueError:
            try:
                found = datetime.fromisoformat(written[:26]).timestamp()
            except ValueError:
                found = None
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not math.isfinite(found):
        shown = json.dumps(line[:40])
        raise UsageError(f"cannot read a time in {path} line {number} ({shown}); {_FIX}")
    return float(found)
