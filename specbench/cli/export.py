"""``specbench export``: runs as tables for other tools."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import typer

from specbench.cli import options
from specbench.common import UsageError
from specbench.common.errors import unknown
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
    from specbench.common.files import check_writable, write_text_atomic
    from specbench.report.render.frames import FORMATS, write
    from specbench.results.frame import load, load_methods, load_positions

    if to not in FORMATS:
        raise unknown("format in --to", to, FORMATS)
    if out is not None:
        check_writable(out.parent)
    if summary and positions:
        raise UsageError("--summary and --positions are two tables; write them one after the other")
    frame = (load_positions if positions else load_methods if summary else load)(*runs)
    if columns is not None:
        wanted = split(columns)
        if not wanted:
            raise UsageError("--columns names nothing; leave it out for all")
        for name in wanted:
            if name not in frame.columns:
                raise unknown("column in --columns", name, frame.columns)
        frame = frame[list(dict.fromkeys(wanted))]
    if out is None:
        write(frame, to, sys.stdout)
        return
    text = io.StringIO()
    write(frame, to, text)
    write_text_atomic(out, text.getvalue())
