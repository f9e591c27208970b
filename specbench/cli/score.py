"""``specbench score``: verdicts on a run's answers, later and without generating anything again."""

from __future__ import annotations

from pathlib import Path

import typer

from specbench.cli import options, output


def score(
    run: Path = options.folders("A folder that specbench run wrote.", "RUN"),
    workers: int | None = typer.Option(None, "--workers", min=1, help="Answers judged at a time; default all cores."),
    data_dir: Path | None = options.of("data_dir"),
    as_json: bool = options.JSON,
) -> None:
    """Score the answers of a run, finished or not, in a process that never imports torch."""
    from specbench.results import RunFolder
    from specbench.runner.rescoring import rescore

    folder = RunFolder.load(run)
    options.assert_answers(folder.run)
    notes = output.stderr()
    summary = rescore(folder, data_dir, lambda text: notes.print(f"{text} …"), workers)
    if as_json:
        output.emit_json({"run": folder.run, "summary": summary.written()})
        return
    from specbench.report import render_terminal, run_report

    output.stdout().print(render_terminal(run_report(folder.run, summary)))
