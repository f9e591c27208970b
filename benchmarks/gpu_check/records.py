"""What the check finds out: figures with their aims, written after every part so that nothing finished is lost."""

from __future__ import annotations

import json
import operator
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_COMPARE: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le, "==": operator.eq}


@dataclass(frozen=True)
class Figure:
    """One measured number.

    Attributes:
        name: what was measured.
        value: the number; None where it could not be had, for the reason in ``note``.
        unit: of it; "ratio" and "share" have none.
        aim: such as ">= 0.8"; empty where the figure is only reported.
        note: sample size and conditions.
    """

    name: str
    value: float | None
    unit: str = "ratio"
    aim: str = ""
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the aim is met; None without one."""
        if not self.aim:
            return None
        if self.value is None:
            return False
        relation, bound = self.aim.split()
        return _COMPARE[relation](self.value, float(bound))


Part = Callable[[], Iterable[Figure]]


@dataclass
class Check:
    """Runs parts one after the other.

    Args:
        out: folder that receives ``gpu-check.json`` and ``gpu-check.md``.
        environment: stored with the figures.
        budget_s: no part is begun after this many seconds.
    """

    out: Path
    environment: dict[str, Any]
    budget_s: float
    parts: list[dict[str, Any]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def run(self, name: str, part: Part, say: Callable[[str], None]) -> None:
        """One part; an error ends the part, not the check, and the figures before it are kept."""
        figures: list[Figure] = []
        error = None
        began = time.monotonic()
        if began - self.started > self.budget_s:
            error = f"not begun: the {self.budget_s:.0f} s are over"
        else:
            try:
                for figure in part():
                    figures.append(figure)
                    say(f"  {line(figure)}")
            except Exception as raised:  # whatever a part runs into on hardware nobody has seen yet
                error = f"{type(raised).__name__}: {(str(raised).splitlines() or [''])[0]}"
                say(traceback.format_exc())
        seconds = time.monotonic() - began
        self.parts.append(
            {"part": name, "seconds": round(seconds, 1), "error": error, "figures": [asdict(one) for one in figures]}
        )
        say(f"{name}: {error or 'done'} in {seconds:.1f} s")
        self.write()

    @property
    def passed(self) -> bool:
        """Whether every part ran to its end and every pass-or-fail figure passed; a missed speed is no failure."""
        checks = [Figure(**one) for part in self.parts for one in part["figures"] if one["unit"] == "failures"]
        return all(part["error"] is None for part in self.parts) and all(check.met is not False for check in checks)

    def write(self) -> None:
        """Writes both files, whole."""
        self.out.mkdir(parents=True, exist_ok=True)
        content = {"environment": self.environment, "parts": self.parts, "passed": self.passed}
        for name, text in (("gpu-check.json", json.dumps(content, indent=1)), ("gpu-check.md", markdown(content))):
            new = self.out / f"{name}.new"
            new.write_text(text + "\n", encoding="utf-8")
            new.replace(self.out / name)


def line(figure: Figure) -> str:
    """A figure in one line."""
    value = "-" if figure.value is None else f"{figure.value:.4g}"
    aim = "" if figure.met is None else f"  aim {figure.aim}: {'met' if figure.met else 'MISSED'}"
    return f"{figure.name:58} {value:>9} {figure.unit}{aim}"


def markdown(content: dict[str, Any]) -> str:
    """The table for the README."""
    device = content["environment"]["device"]
    versions = content["environment"]["versions"]
    rows = [
        f"{device['name']}, torch {versions['torch']}, triton {versions['triton']}, "
        f"transformers {versions['transformers']}",
        "",
        "| figure | measured | aim | |",
        "| --- | ---: | --- | --- |",
    ]
    for part in content["parts"]:
        for one in part["figures"]:
            figure = Figure(**one)
            value = "-" if figure.value is None else f"{figure.value:.4g}"
            unit = "" if figure.unit in ("ratio", "share", "failures") else f" {figure.unit}"
            met = {None: "", True: "met", False: "**missed**"}[figure.met]
            rows.append(f"| {figure.name} | {value}{unit} | {figure.aim} | {met} |")
        if part["error"]:
            rows.append(f"| {part['part']} | | | {part['error']} |")
    return "\n".join(rows)
