"""Records: figures with aims and predictions, appended to a file that survives whatever comes after them. No torch."""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

_NO_FRACTION = 999.95  # four digits are before the point from here on
_MOST_WRITTEN = 1e15  # nobody reads more digits than these

#: State of a part for which there was no time, or which needs a package that is not here: nothing is wrong.
NOT_MEASURED = "not measured"

_COMPARE: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le, "==": operator.eq}


@dataclass(frozen=True)
class Figure:
    """One measured number.

    Attributes:
        name: what was measured.
        value: the number; None where it was left out, for the reason in ``note``.
        unit: of it; "ratio" and "share" have none, "failures" decide whether the check passes.
        aim: such as ">= 0.8"; empty where the figure is only reported.
        note: sample size and conditions.
        shape: the model it was measured on, as :mod:`benchmarks.gpu_check.shapes` names it.
        key: by which later parts find it; empty where none does.
        predicted: what was expected, in the unit of ``value``.
        low, high: the range of what was expected; None where it has none.
        basis: what the prediction was computed from.
    """

    name: str
    value: float | None
    unit: str = "ratio"
    aim: str = ""
    note: str = ""
    shape: str = ""
    key: str = ""
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    basis: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the aim is met; None without one, or where nothing was measured."""
        if not self.aim or self.value is None:
            return None
        relation, bound = self.aim.split()
        return _COMPARE[relation](self.value, float(bound))

    @property
    def shown(self) -> str:
        """The number with its unit."""
        if self.value is None:
            return "–"
        return f"{number(self.value)}{'' if self.unit in ('ratio', 'share', 'failures') else ' ' + self.unit}"

    @property
    def expected(self) -> str:
        """What was predicted, with its range; empty where nothing was."""
        if self.predicted is None:
            return ""
        value = number(self.predicted)
        return value if self.low is None or self.high is None else f"{value}{between(self.low, self.high)}"


def between(low: float, high: float) -> str:
    """A range in brackets, three digits of each end; empty where they are the same."""
    ends = [number(float(f"{value:.3g}")) for value in (low, high)]
    return f" ({ends[0]} to {ends[1]})" if ends[0] != ends[1] else ""


def number(value: float) -> str:
    """Four digits, counts and what has more digits before its point as they are, and nothing as 1.2e+04."""
    whole = value % 1 == 0 or abs(value) >= _NO_FRACTION
    return f"{value:,.0f}" if whole and abs(value) < _MOST_WRITTEN else f"{value:.4g}"


@dataclass
class Outcome:
    """One part as it went.

    Attributes:
        part: its name.
        figures: those it measured before it ended.
        predicted: those it predicts, without values.
        state: "done", "failed", "running", or :data:`NOT_MEASURED`.
        why: what ended it, where it was no success; it may have figures all the same.
        seconds: it took.
    """

    part: str
    figures: list[Figure] = field(default_factory=list)
    predicted: list[Figure] = field(default_factory=list)
    state: str = "running"
    why: str = ""
    seconds: float = 0.0


class Journal:
    """A file of JSON lines; each is on disk when :meth:`append` returns, and several processes may append.

    Args:
        path: of the file; its folder is made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def append(self, kind: str, **content: Any) -> None:
        """Writes one line, in one piece, behind what a crash or a full disk may have cut off.

        Raises:
            OSError: the disk is full, or the folder may not be written.
        """
        line = json.dumps({"kind": kind, **content}, allow_nan=False).encode() + b"\n"
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":
                line = b"\n" + line
            while line:
                line = line[os.write(file, line) :]
            os.fsync(file)
        finally:
            os.close(file)

    def figure(self, part: str, figure: Figure) -> None:
        """Writes a figure of a part; one that is no finite number is left out and says so."""
        if figure.value is not None and not math.isfinite(figure.value):
            figure = replace(figure, value=None, note=f"measured {figure.value}; {figure.note}".rstrip("; "))
        if figure.predicted is not None and not math.isfinite(figure.predicted):
            figure = replace(figure, predicted=None, low=None, high=None)
        self.append("figure", part=part, **asdict(figure))

    def lines(self) -> list[dict[str, Any]]:
        """What was written; a line that a crash cut off is left out."""
        if not self.path.exists():
            return []
        found = []
        for line in self.path.read_bytes().splitlines():
            with suppress(ValueError):  # JSON or UTF-8 that ends too early
                found.append(json.loads(line))
        return found

    def outcomes(self) -> dict[str, Outcome]:
        """The last attempt at each part, in the order in which the parts were first begun."""
        found: dict[str, Outcome] = {}
        for line in self.lines():
            if line["kind"] == "began":
                found[line["part"]] = Outcome(line["part"])
            elif line["kind"] == "figure":
                found.setdefault(line["part"], Outcome(line["part"])).figures.append(_figure(line))
            elif line["kind"] == "predicted":
                found.setdefault(line["part"], Outcome(line["part"])).predicted.append(_figure(line))
            elif line["kind"] == "ended":
                outcome = found.setdefault(line["part"], Outcome(line["part"]))
                outcome.state, outcome.why, outcome.seconds = line["state"], line["why"], line["seconds"]
        return found

    def find(self, key: str, shape: str = "") -> float | None:
        """The value of a figure that an earlier part measured; None where it has not."""
        values = [
            figure.value
            for outcome in self.outcomes().values()
            for figure in outcome.figures
            if figure.key == key and figure.shape == shape
        ]
        return values[-1] if values else None

    def last(self, kind: str, **content: Any) -> dict[str, Any]:
        """The latest line of a kind that says so; empty where there is none."""
        wanted = {"kind": kind, **content}.items()
        lines = reversed(self.lines())
        return next((line for line in lines if all(line.get(name) == value for name, value in wanted)), {})


def passed(outcomes: Mapping[str, Outcome]) -> bool:
    """Whether some part ran to its end, none failed, and nothing was found wrong.

    A missed speed is no failure, and neither is a part that there was no time for.
    """
    checks = [one for outcome in outcomes.values() for one in outcome.figures if one.unit == "failures"]
    states = [one.state for one in outcomes.values()]
    return (
        "done" in states
        and all(state in ("done", NOT_MEASURED) for state in states)
        and all(one.met is not False for one in checks)
    )


def line(figure: Figure) -> str:
    """A figure in one line of a terminal."""
    predicted = f"  predicted {figure.expected}" if figure.expected else ""
    aim = "" if figure.met is None else f"  aim {figure.aim}: {'met' if figure.met else 'MISSED'}"
    note = f"  ({figure.note})" if figure.value is None and figure.note else ""
    return f"  {figure.name:66} {figure.shown:>16}{predicted}{aim}{note}"


def _figure(line: Mapping[str, Any]) -> Figure:
    return Figure(**{name: line[name] for name in Figure.__dataclass_fields__ if name in line})
