"""``specbench report``: runs, sweeps and profiles as a page that people can show each other."""

from __future__ import annotations

from pathlib import Path

import typer

from specbench.cli import options, output


def report(
    runs: list[Path] = options.folders("Folders of runs, sweeps or profiles, or folders of such.", "RUNS"),
    out: Path = typer.Option(options.REPORTS, "--out", help="Folder that receives report.html, .md and .csv."),
    claims: bool = typer.Option(False, "--claims", help="With the published rows of the same methods beside them."),
    as_json: bool = options.JSON,
) -> None:
    """Write runs, sweeps and profiles as one HTML page, as Markdown and as CSV, without torch."""
    from specbench.report import build_what_can_be, gather, write_report

    document, found = build_what_can_be(gather(runs), claims=claims)
    notes = output.stderr()
    for each in found.skipped:
        notes.print(f"not in the report: {each.folder}: {each.why}", soft_wrap=True, markup=False)
    page = write_report(document, out)
    if as_json:
        skipped = [{"folder": each.folder, "why": each.why} for each in found.skipped]
        used = {
            "runs": [run.folder for run in found.runs],
            "sweeps": [sweep.path.name for sweep in found.sweeps],
            "profiles": [name for name, _ in found.profiles],
        }
        output.emit_json({"report": str(page), **used, "skipped": skipped})
        return
    output.stdout().print(str(page), soft_wrap=True, markup=False)
