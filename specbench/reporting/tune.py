"""A recommendation from a sweep, with its evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from specbench.records import BASELINE
from specbench.reporting.sweep import interval
from specbench.roofline import free_rows

_TOLERANCE = 0.10


def advice(
    run: Mapping[str, Any], cells: pd.DataFrame, curve: Sequence[tuple[int, float]], method: str
) -> dict[str, Any]:
    """What to use.

    Args:
        run: content of a ``run.json`` of the sweep.
        cells: as :func:`specbench.sweep.table.cells` makes it, at one concurrency.
        curve: (rows, seconds) of steps measured here.
        method: its name.

    Returns:
        JSON-ready: ``best`` (its row, None where nothing was measured), ``set`` (what to give ``--set``), ``faster``
        (whether the interval on the held-out prompts says so), ``free_rows``, ``said`` (sentences).
    """
    tuning = cells[(cells["set"] == "tuning") & (cells["method"] != BASELINE) & (cells["stopped"] != "too large")]
    best = tuning[tuning["best"].astype(bool)]
    model = run["model"]
    where = f"{run['task']['name']}, {model['name']} {model['dtype']}, {run['environment']['device']['name']}"
    free = free_rows(dict(curve), _TOLERANCE)
    if not len(best):
        return {"best": None, "set": [], "faster": False, "free_rows": free, "said": [f"{where}: nothing measured."]}
    row = best.iloc[0]
    held = cells[(cells["set"] == "held-out") & (cells["label"] == row["label"])]
    judged = held.iloc[0] if len(held) else row
    faster = bool(judged["speedup_low"] > 1.0)
    options = str(row["label"]).split(" ")[1:]
    settings = [f"{method}.{word}" for word in options]
    others = tuning[tuning["within_noise"].astype(bool) & ~tuning["best"].astype(bool)]
    said = [
        f"{where}:",
        f"{' '.join([method, *options])}: speedup {interval(judged, 'speedup')} over ar on {int(judged['prompts'])} "
        f"prompts {'that it was not chosen by' if len(held) else 'that it was chosen by'}.",
        f"Why: {judged['tpf']:.2f} tokens a forward of {judged['rows_per_step']:.0f} rows; here a step of up to {free} "
        f"rows costs at most {_TOLERANCE:.0%} more than one row.",
    ]
    if len(others):
        said.append(f"{len(others)} of {len(tuning) - 1} other settings are within noise of it.")
    if faster:
        said.append("Use: specbench run --method " + method + "".join(f" --set {setting}" for setting in settings))
    else:
        said.append("No setting tried is shown to be faster than ar here.")
    return {
        "best": {key: None if pd.isna(value) else value for key, value in judged.to_dict().items()},
        "set": settings,
        "faster": faster,
        "free_rows": free,
        "said": said,
    }
