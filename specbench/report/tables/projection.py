"""A projection onto another device, apart from what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


def projection_table(content: Mapping[str, Any]) -> RenderableType:
    """The table of one ``projection-GPU.json``."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("method", min_width=6, overflow="fold")
    table.add_column("tok/s", no_wrap=True)
    table.add_column("speedup", no_wrap=True)
    for label, figures in content["rows"].items():
        ratio = band(figures["speedup"], 2) if "speedup" in figures else "1"
        table.add_row(label, band(figures["decode_tok_s"], 0), ratio)
    title = Text(f"Projected onto {content['gpu']}, not measured", style="bold")
    said = (
        f"From tokens per forward and step times measured on {content['device']} and the datasheet of "
        f"{content['gpu']}. Bands: every step reaches the share of its bound that it reaches here, or what it takes "
        "beyond the bound stays as long. Drafting on the host is left out."
    )
    return Group(title, table, Text(), Text(said, style="dim"))


def band(figure: Mapping[str, float], digits: int) -> str:
    """Value and band."""
    return f"{figure['value']:.{digits}f} ({figure['low']:.{digits}f} to {figure['high']:.{digits}f})"
