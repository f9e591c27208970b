"""``specbench check-run``: the ways in which a finished run may mislead."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from specbench.cli import options, output


def check_run(
    run: Path = options.folders("A folder that specbench run or import wrote.", "RUN"),
    as_json: bool = options.JSON,
) -> None:
    """List the ways in which a run may mislead, with the evidence and what to do. No torch."""
    from specbench import analysis
    from specbench.results import is_import, read_import

    if is_import(run):
        checks = analysis.check_import(read_import(run))
    else:
        read = analysis.read_run(run, traces=False)
        checks = analysis.check_run(read.run, read.config, read.summary)
    if as_json:
        output.emit_json({"run": str(run), "checks": [asdict(each) for each in checks]})
        return
    from specbench.report import check_table, render_terminal

    output.stdout().print(render_terminal([check_table("", checks)]))
