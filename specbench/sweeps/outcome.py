"""Sweep: a sweep as Python has it, its folder, what it found and its table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.results.summary_schema import SweepFindings
from specbench.sweeps.table import ReadSweep, read_sweep

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = ("label", "concurrency", "set", "prompts", "tokens_per_forward", "decode_tok_s", "speedup", "stopped")


@dataclass(frozen=True)
class Sweep:
    """What ``specbench.sweep`` returns; any sweep folder can be given to it."""

    folder: Path

    @cached_property
    def _read(self) -> ReadSweep:
        return read_sweep(self.folder)

    @property
    def summary(self) -> Mapping[int, SweepFindings]:
        """By the number of sequences stepped together: the fastest cell, and those as fast as it."""
        return {count: read.summary.sweep or SweepFindings() for count, read in self._read.runs.items()}

    def frame(self) -> pd.DataFrame:
        """A row per cell, concurrency and set of prompts; see :func:`specbench.sweeps.table.cells`."""
        return self._read.cells

    def _repr_html_(self) -> str:
        """What a notebook shows: the cells by their speed, the fastest first."""
        cells = self.frame().sort_values(["concurrency", "set", "decode_tok_s"], ascending=[True, False, False])
        shown = cells[[name for name in _SHOWN if name in cells]]
        return str(shown.to_html(index=False, float_format="{:.3g}".format, na_rep="-", escape=True))
