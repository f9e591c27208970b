"""Trained: a finished training as Python has it, its folder and its card."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Trained:
    """What ``specbench.train`` returns.

    Attributes:
        folder: with the weights; what ``--head`` or ``--model`` takes, where the card does not name another.
        summary: the card: what was learnt from what, with which options, and how it fared on held-out prompts.
    """

    folder: Path
    summary: Mapping[str, Any]

    def frame(self) -> pd.DataFrame:
        """The card as one row, parts of parts as ``after_prompts``: rows of several trainings go below each other."""
        import pandas as pd

        return pd.json_normalize([dict(self.summary)], sep="_")

    def _repr_html_(self) -> str:
        """What a notebook shows: the card, without the recipe's options."""
        lines = ["<table>", f"<caption>{html.escape(str(self.folder))}</caption>"]
        for name, value in self.summary.items():
            if name != "options":
                lines.append(f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>")
        return "\n".join([*lines, "</table>"])
