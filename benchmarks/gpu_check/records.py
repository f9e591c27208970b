"""Figures with aims and predictions, appended to a journal file that survives crashes."""

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

_NO_FRACTION = 999.95  # from here on there are four digits before the point
_MOST_WRITTEN = 1e15  # larger numbers are written as powers of ten

#: State of a part that had no time or lacks a package: not a failure.
NOT_MEASURED = "not measured"

_COMPARE: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le, "==": operator.eq}


@dataclass(frozen=True)
class Figure:
    """One measured number.

    Attributes:
        name: what was measured.
        value: the number; None if it was left out, for the reason in ``note``.
        unit: unit of the value; "ratio" and "share" have none, "failures" decide whether the check passes.
        aim: condition such as ">= 0.8"; empty if the figure is only reported.
        note: sample size and conditions.
        shape: model that it was measured on, as :mod:`benchmarks.gpu_check.shapes` names it.
        key: key by which later parts find the figure; empty if none does.
        predicted: predicted value, in the same unit.
        low, high: range of the prediction; None if it has none.
        basis: how the prediction was computed.
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
        """Whether the aim is met; None without an aim or a value."""
        if not self.aim or self.value is None:
            return None
        relation, bound = self.aim.split()
        return _COMPARE[relation](self.value, float(bound))

    @property
    def shown(self) -> str:
        """The value with its unit."""
        if self.value is None:
            return "–"
        return f"{number(self.value)}{'' if self.unit in ('ratio', 'share', 'failures') else ' ' + self.unit}"

    @property
    def expected(self) -> str:
        """The prediction with its range; empty without one."""
        if self.predicted is None:
            return ""
        value = number(self.predicted)
        return value if self.low is None or self.high is None else f"{value}{between(self.low, self.high)}"


def between(low: float, high: float) -> str:
    """Format a range in brackets with three digits; empty if both ends are equal."""
    ends = [number(float(f"{value:.3g}")) for value in (low, high)]
    return f" ({ends[0]} to {ends[1]})" if ends[0] != ends[1] else ""


def number(value: float) -> str:
    """Format a number with four digits; counts and larger numbers in full, without exponents."""
    whole = value % 1 == 0 or abs(value) >= _NO_FRACTION
    return f"{value:,.0f}" if whole and abs(value) < _MOST_WRITTEN else f"{value:.4g}"


@dataclass
class Outcome:
    """The outcome of a part.

    Attributes:
        part: name of the part.
        figures: figures measured before it ended.
        predicted: predicted figures, without values.
        state: "done", "failed", "running", or :data:`NOT_MEASURED`.
        why: reason if the part did not succeed; it may still have figures.
        seconds: time that the part took.
    """

    part: str
    figures: list[Figure] = field(default_factory=list)
    predicted: list[Figure] = field(default_factory=list)
    state: str = "running"
    why: str = ""
    seconds: float = 0.0


class Journal:
    """A file of JSON lines; each is on disk when :meth:`append` returns. Several processes may append.

    Args:
        path: path of the file; its folder is created.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def append(self, kind: str, **content: Any) -> None:
        """Write one line atomically, after an incomplete line that a crash or a full disk may have left.

        Raises:
            OSError: the disk is full, or the folder is not writable.
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
        """Write a figure of a part; a value that is not finite is replaced by None and a note."""
        if figure.value is not None and not math.isfinite(figure.value):
            figure = replace(figure, value=None, note=f"measured {figure.value}; {figure.note}".rstrip("; "))
        if figure.predicted is not None and not math.isfinite(figure.predicted):
            figure = replace(figure, predicted=None, low=None, high=None)
        self.append("figure", part=part, **asdict(figure))

    def lines(self) -> list[dict[str, Any]]:
        """Read all complete lines."""
        if not self.path.exists():
            return []
        found = []
        for line in self.path.read_bytes().splitlines():
            with suppress(ValueError):  # incomplete JSON or UTF-8
                found.append(json.loads(line))
        return found

    def outcomes(self) -> dict[str, Outcome]:
        """Return the last attempt of each part, in the order in which the parts first began."""
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
        """Return the value of an earlier part's figure, or None if it was not measured."""
        values = [
            figure.value
            for outcome in self.outcomes().values()
            for figure in outcome.figures
            if figure.key == key and figure.shape == shape
        ]
        return values[-1] if values else None

    def last(self, kind: str, **content: Any) -> dict[str, Any]:
        """Return the latest line of a kind with these fields; empty if there is none."""
        wanted = {"kind": kind, **content}.items()
        lines = reversed(self.lines())
        return next((line for line in lines if all(line.get(name) == value for name, value in wanted)), {})


def passed(outcomes: Mapping[str, Outcome]) -> bool:
    """Whether at least one part finished, no part failed, and no figure counts failures.

    A missed speed aim is not a failure, nor is a part that had no time.
    """
    checks = [one for outcome in outcomes.values() for one in outcome.figures if one.unit == "failures"]
    states = [one.state for one in outcomes.values()]
    return (
        "done" in states
        and all(state in ("done", NOT_MEASURED) for state in states)
        and all(one.met is not False for one in checks)
    )


def line(figure: Figure) -> str:
    """Format a figure as one line for the terminal."""
    predicted = f"  predicted {figure.expected}" if figure.expected else ""
    aim = "" if figure.met is None else f"  aim {figure.aim}: {'met' if figure.met else 'MISSED'}"
    note = f"  ({figure.note})" if figure.value is None and figure.note else ""
    return f"  {figure.name:66} {figure.shown:>16}{predicted}{aim}{note}"


def _figure(line: Mapping[str, Any]) -> Figure:
    return Figure(**{name: line[name] for name in Figure.__dataclass_fields__ if name in line})
