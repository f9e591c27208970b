"""Tables of cells as a sweep makes them, with figures that a test can tell beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from specbench.report.pictures.cells import FIGURES
from specbench.results.stats import Interval, verdict

NOTHING = float("nan")
_PLAIN: dict[str, Any] = {
    **dict.fromkeys(FIGURES, NOTHING),
    "method": "jf", "concurrency": 1, "prompts": 50, "requests": 50, "tokens": 5000, "target_forwards": 2000,
    "tokens_per_forward": 2.5, "decode_tok_s": 100.0, "best": False, "within_noise": False, "stopped": "",
}  # fmt: skip


def cells(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The table of these rows. What a row does not say is plain; ``decode_tok_s_half`` makes an interval."""
    made = []
    for number, given in enumerate(rows):
        row = {**_PLAIN, "cell": f"{number:08x}", **given}
        half = row.pop("decode_tok_s_half", None)
        if half is not None:
            row |= {"decode_tok_s_low": row["decode_tok_s"] - half, "decode_tok_s_high": row["decode_tok_s"] + half}
        if "label" not in given:
            row["label"] = row["method"]
        made.append(row)
    return pd.DataFrame(made)


def plane(n: float, pool: float) -> float:
    """tok/s of :func:`grid`: a plane over log2 of both options."""
    return float(20 + 10 * np.log2(n) + 4 * np.log2(pool))


def grid(
    ns: Sequence[float] = (8, 16, 32, 64), pools: Sequence[float] = (1, 2, 4), *, without: Any = (), **further: Any
) -> pd.DataFrame:
    """A cell for each pair of options but those in ``without``: ``plane`` tok/s, a tenth of that tokens per forward."""
    pairs = [(n, pool) for n in ns for pool in pools if (n, pool) not in without]
    return cells(
        [
            {"n": n, "pool": p, "decode_tok_s": plane(n, p), "tokens_per_forward": plane(n, p) / 10, **further}
            for n, p in pairs
        ]
    )


def busy(method: str, speedups: Mapping[int, float | tuple[float, float, float]], **further: Any) -> pd.DataFrame:
    """A method's rows by concurrency: its speedup, or (low, value, high)."""
    rows = []
    for concurrency, given in speedups.items():
        low, value, high = given if isinstance(given, tuple) else (NOTHING, given, NOTHING)
        said = verdict(None if np.isnan([low, high]).any() else Interval(low, high, 0.95))
        figures = {"speedup": value, "speedup_low": low, "speedup_high": high, "verdict": said}
        rows.append({"method": method, "concurrency": concurrency, **figures, **further})
    return cells(rows)
