"""``specbench export``: runs as tables for other tools."""

from __future__ import annotations

from pathlib import Path

import typer

from specbench.cli import options
from specbench.common import UsageError
from specbench.runner.plan import split


def export(
    runs: list[Path] = options.folders("Folders that specbench run or sweep wrote.", "RUN..."),
    to: str = typer.Option("csv", "--to", help="csv, json, md or latex."),
    summary: bool = typer.Option(False, "--summary", help="A row per method instead of one per request."),
    positions: bool = typer.Option(
        False, "--positions", help="A row per method and window of the answer: speed over the place in it."
    ),
    columns: str | None = typer.Option(
        None, "--columns", help="These columns only, comma-separated.", show_default="all"
    ),
    out: Path | None = typer.Option(None, "--out", help="A file instead of stdout.", dir_okay=False),
) -> None:
    """Export runs as one table in long format, a row per request, without torch."""
    from specbench.report import export_tables

    if summary and positions:
        raise UsageError("--summary and --positions are two tables; write them one after the other")
    wanted = [] if columns is None else split(columns)
    if columns is not None and not wanted:
        raise UsageError("--columns names nothing; leave it out for all")
    export_tables(
        runs, to, out, rows="positions" if positions else "methods" if summary else "requests", columns=wanted
    )
