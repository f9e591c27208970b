"""The speed that each user sees and the throughput of the machine over concurrency, as numbers and sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from specbench.report.charts.sweep_cells import Floats, disturbances, floats, lines_of
from specbench.results import BASELINE

_FASTER = "faster"


@dataclass(frozen=True)
class Line:
    """A configuration over concurrency, sorted by it: tok/s of one user and of all users together."""

    label: str
    users: Floats
    per_user: Floats
    throughput: Floats
    faster: tuple[bool, ...]
    speedup: Floats
    doubt: str


def user_lines(cells: pd.DataFrame) -> tuple[Line | None, list[Line]]:
    """AR's line, and those of the other configurations that were measured at several concurrencies."""
    if "user_tok_s" not in cells:  # a table of an older version
        return None, []
    cells = cells[np.isfinite(floats(cells, "user_tok_s"))]
    baseline = cells[cells["method"] == BASELINE].sort_values("concurrency")
    others = [_line(line) for line in lines_of(cells) if len(line) > 1]
    return (_line(baseline) if len(baseline) > 1 else None), others


def _line(cells: pd.DataFrame) -> Line:
    return Line(
        str(cells["label"].iloc[0]),
        users=floats(cells, "concurrency"),
        per_user=floats(cells, "user_tok_s"),
        throughput=floats(cells, "decode_tok_s"),
        faster=tuple(cells["verdict"].eq(_FASTER)),
        speedup=floats(cells, "speedup"),
        doubt=_doubt(cells),
    )


def _doubt(cells: pd.DataFrame) -> str:
    if disturbances(cells):
        return " (unsure: the machine was disturbed)"
    if not np.isfinite(floats(cells, "speedup_low")).any():
        return " (too few prompts for an interval)"
    return ", within noise"


def user_sentences(baseline: Line, lines: Sequence[Line]) -> Iterator[str]:
    """Up to how many users each configuration pays, and its throughput where its users are served as fast as AR's."""
    for line in lines:
        paying = int(np.cumprod(line.speedup > 1).sum())
        if not paying:
            found = f"does not pay at {_count(line.users[0])}, the fewest measured"
        elif paying == len(line.users):
            found = f"pays up to {_count(line.users[-1])}, the most measured"
        else:
            found = f"pays up to {_count(line.users[paying - 1])}, and not at {line.users[paying]:g}"
        sure = "" if paying and all(line.faster[:paying]) else line.doubt
        yield f"{line.label} {found}{sure}{_same_experience(baseline, line)}."


def _count(users: float) -> str:
    return "1 user" if users == 1 else f"{users:g} users"


def _same_experience(baseline: Line, line: Line) -> str:
    """Throughput over AR's where both serve each user equally fast: at AR's measured points within the line's range."""
    order = np.argsort(line.per_user)
    inside = [at for at, rate in enumerate(baseline.per_user) if line.per_user.min() <= rate <= line.per_user.max()]
    if not inside:
        return ""
    at = max(inside, key=lambda at: baseline.users[at])
    rate = baseline.per_user[at]
    served = np.exp(np.interp(np.log(rate), np.log(line.per_user[order]), np.log(line.throughput[order])))
    return (
        f"; at {rate:.3g} tok/s per user (AR's speed with {_count(baseline.users[at])}) its throughput is "
        f"{served / baseline.throughput[at]:.2f} times AR's"
    )
