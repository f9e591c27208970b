"""``specbench report``: write runs, sweeps and profiles as a page to share, or as one table."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from specbench.cli import options, output
from specbench.common import EnvironmentRefused, UsageError, unknown_name
from specbench.planning import split_names


def report(
    runs: list[Path] = options.folders(
        "Folders of runs, sweeps or profiles, or folders that contain them.", "RUNS", many=True
    ),
    out: Path | None = typer.Option(
        None, "--out", help="Folder for report.html, .md and .csv; with --to a file.", show_default="reports, or stdout"
    ),
    claims: bool = typer.Option(False, "--claims", help="Add published figures of the same methods."),
    to: str | None = typer.Option(
        None,
        "--to",
        help="One table instead of a page, a row per request: csv, json, md or latex; html with --rows.",
        metavar="FORMAT",
    ),
    summary: bool = typer.Option(False, "--summary", help="With --to: a row per method instead of one per request."),
    positions: bool = typer.Option(
        False, "--positions", help="With --to: a row per method and window of the answer: speed over the position."
    ),
    columns: str | None = typer.Option(
        None, "--columns", help="With --to: only these columns, comma-separated.", show_default="all"
    ),
    rows: str | None = options.table_option(
        "--rows", "With --to: a table with these axes down, as model,method, and those of --columns across."
    ),
    value: str | None = options.table_option("--value", "With --to: figures in the cells of such a table."),
    definitions: str | None = typer.Option(
        None,
        "--definitions",
        help="Print acceptance in another tool's definitions and names: vllm, sglang, tensorrt-llm, llama.cpp, "
        "speed-bench, eagle, or papers (tokens per forward as papers count them).",
        metavar="TOOL",
    ),
    as_json: bool = options.JSON,
) -> None:
    """Write runs, sweeps and profiles as one HTML page, Markdown and CSV; or runs as one table with --to. No torch."""
    if definitions is not None:
        if claims or to is not None or out is not None:
            raise UsageError("--definitions prints a table; leave out --claims, --to and --out")
        _define(runs, definitions.lower(), as_json)
        return
    if to is not None and out is not None and out.is_dir():
        raise UsageError(
            f"--out {out} is a folder, and --to {to} writes one file; name one, as in {out / f'runs.{to}'}"
        )
    if rows is not None or value is not None:
        if to is None or summary or positions:
            raise UsageError("--rows and --value make a table; add --to latex, md, html or csv, and nothing else")
        from specbench.analysis import load_methods
        from specbench.report import crosstab, export_table

        export_table(crosstab(load_methods(*runs), options.layout(rows, columns, value)), to, out)
        return
    if to is not None:
        if claims or as_json:
            raise UsageError("--claims and --json need the page; leave them out with --to")
        _export(runs, to, summary, positions, columns, out)
        return
    if summary or positions or columns is not None:
        raise UsageError("--summary, --positions and --columns choose a table; add --to csv")
    if out is not None and os.path.exists(out) and not os.path.isdir(out):
        raise EnvironmentRefused(f"cannot write a report to --out {out}: it is not a folder; name a folder")
    from specbench.report import build_what_can_be, gather, write_report

    document, found = build_what_can_be(gather(runs), claims=claims)
    notes = output.stderr()
    for each in found.skipped:
        notes.print(f"not in the report: {each.folder}: {each.why}", soft_wrap=True, markup=False)
    page = write_report(document, out or options.REPORTS)
    if as_json:
        skipped = [{"folder": each.folder, "why": each.why} for each in found.skipped]
        used = {
            "runs": [run.folder for run in found.runs],
            "sweeps": [sweep.path.name for sweep in found.sweeps],
            "profiles": [name for name, _ in found.profiles],
            "imports": [each.path.name for each in found.imports],
        }
        output.emit_json({"report": str(page), **used, "skipped": skipped})
        return
    output.stdout().print(str(page), soft_wrap=True, markup=False)


def _define(runs: list[Path], engine: str, as_json: bool) -> None:
    """Print the acceptance of runs as another tool defines it."""
    from specbench.analysis import ENGINES, define, read_run
    from specbench.report import definitions_report, gather, render_terminal

    if engine not in ENGINES:
        raise unknown_name("tool", engine, ENGINES, "for --definitions")
    found_runs = gather(runs).runs
    if not found_runs:
        raise UsageError(
            f"cannot use --definitions with {runs[0]}: it is no run; name a folder that specbench run wrote"
        )
    for run in found_runs:
        path, read = run.path, read_run(run.path)
        labels = [spec.label for spec in read.config.methods]
        rows = {label: define([r for r in read.records if r.method == label], engine) for label in labels}
        if as_json:
            found = {label: each and {one.name: one.value for one in each} for label, each in rows.items()}
            output.emit_json({"folder": str(path), "definitions": engine, "rows": found})
        else:
            output.stdout().print(render_terminal(definitions_report(engine, str(path), rows)))


def _export(runs: list[Path], to: str, summary: bool, positions: bool, columns: str | None, out: Path | None) -> None:
    """Write runs as one table in long format to a file or to stdout."""
    from specbench.report import export_tables

    if summary and positions:
        raise UsageError("--summary and --positions are two tables; write them one after the other")
    wanted = [] if columns is None else split_names(columns)
    if columns is not None and not wanted:
        raise UsageError("--columns is empty; leave it out for all columns")
    export_tables(
        runs, to, out, rows="positions" if positions else "methods" if summary else "requests", columns=wanted
    )
