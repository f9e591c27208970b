"""Access to a sweep's table for charts and tables: a row per configuration and concurrency, in long format.

Columns that are not in ``FIGURES`` are options of the sweep. Missing figures are nan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from specbench.results import BASELINE

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

#: Every column that is not an option. ``speedup`` is over AR at the same concurrency.
FIGURES = (
    "cell", "label", "method", "concurrency", "prompts", "requests", "tokens", "target_forwards", "tokens_per_forward",
    "decode_tok_s", "decode_tok_s_low", "decode_tok_s_high", "speedup", "speedup_low", "speedup_high",
    "blocks", "verdict", "chosen_low", "chosen_high",
    "rows_per_step", "step_ms", "predicted_decode_tok_s", "user_tok_s", "accuracy", "best", "within_noise", "stopped",
    "fault", "disturbed", "memory",
)  # fmt: skip

#: Value of ``stopped`` for configurations that were dropped before all prompts were measured.
HALVED = "halved"

#: Values of ``stopped`` for configurations without figures: their tree is too large, or the method's code failed.
LARGE, FAILED = "too large", "failed"


def check(cells: pd.DataFrame, columns: Iterable[str] = FIGURES) -> None:
    """Raise ValueError with the names of all missing columns."""
    if missing := [column for column in columns if column not in cells.columns]:
        raise ValueError(f"the table of cells lacks {', '.join(missing)}")


def methods(cells: pd.DataFrame) -> list[str]:
    """The methods other than AR, in the order of the rows."""
    return [str(method) for method in cells["method"].unique() if method != BASELINE]


def options(cells: pd.DataFrame) -> dict[str, int]:
    """Options with a value in any configuration -> number of different values, in column order."""
    found = {str(column): cells[column].nunique() for column in cells.columns if column not in FIGURES}
    return {option: count for option, count in found.items() if count}


def is_numeric(values: pd.Series[Any]) -> bool:
    """Whether an option's values are numbers and can be drawn on an axis; True and False count as words."""
    known = values.dropna()
    return all(isinstance(value, int | float | np.number) and not isinstance(value, bool) for value in known)


def values_of(cells: pd.DataFrame, option: str) -> list[Any]:
    """The different values of an option: numbers ascending, words in the order of the rows."""
    known = cells[option].dropna()
    return sorted(known.unique()) if is_numeric(known) else list(known.unique())


def floats(cells: pd.DataFrame, column: str) -> Floats:
    """[n] values of a column, nan if missing."""
    return np.asarray(pd.to_numeric(cells[column]), dtype=np.float64)


def flags(cells: pd.DataFrame, column: str) -> Flags:
    """[n] whether a flag is set; missing flags are not set."""
    return np.asarray(cells[column].eq(True), dtype=np.bool_)


def disturbances(cells: pd.DataFrame) -> list[str]:
    """Why configurations were measured on a disturbed machine, each reason once."""
    if "disturbed" not in cells:
        return []
    return [str(why) for why in cells["disturbed"].dropna().unique() if why]


def shown(value: Any) -> str:
    """Format an option's value: 64 rather than 64.0, which pandas stores in a column with gaps."""
    return f"{value:g}" if isinstance(value, float | np.floating) else str(value)


def bars(cells: pd.DataFrame, column: str) -> Floats:
    """[2, n] lengths of error bars, downwards and upwards; nan without an interval."""
    value = floats(cells, column)
    lengths = np.stack([value - floats(cells, f"{column}_low"), floats(cells, f"{column}_high") - value])
    return np.maximum(lengths, 0.0)


def drawn_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """The rows of a sweep's table that charts show: those on the tuning prompts."""
    tuning = cells[(cells["set"] == "tuning") & cells["method"].notna()].drop(columns="set")
    # Charts treat jf and jf#2 as two methods, because their configurations may have equal options.
    return tuning.assign(method=tuning["label"].str.split(" ").str[0])


def lines_of(cells: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the rows with a speedup of each configuration, sorted by concurrency."""
    mine = cells[(cells["method"] != BASELINE) & np.isfinite(floats(cells, "speedup"))]
    setting = ["method", *(str(column) for column in cells.columns if column not in FIGURES)]
    for _, line in mine.groupby(setting, sort=False, dropna=False):
        if line["concurrency"].duplicated().any():
            raise ValueError(f"{line['label'].iloc[0]} has several rows at one concurrency")
        yield line.sort_values("concurrency")
