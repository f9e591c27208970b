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
    from specbench.evals import Tenths, score_in_child
    from specbench.results import RunFolder, read_run, summarise
    from specbench.results.sweep_folder import read_head
    from specbench.results.verdicts import read_metrics

    folder = RunFolder.load(run)
    options.assert_answers(folder.run)
    before = folder.summary()
    sweep = before.sweep if before else None
    # A sweep's summary is of the prompts to choose by, and sweep.json says which these are.
    chosen_by = None if sweep is None else {*read_head(run.resolve().parent)["tuning"]}
    notes = output.stderr()
    verdicts = score_in_child(run, data_dir, Tenths(lambda text: notes.print(f"{text} …")), workers)
    read = read_run(run)
    # What was measured and graded stays as it is; only what the verdicts decide is written anew.
    graded = {row.method: row.lossless for row in read.summary.rows if row.lossless}
    records = [record for record in read.records if chosen_by is None or record.prompt_id in chosen_by]
    summary = summarise(read.config, records, verdicts, graded, read_metrics(run), read.summary.engine)
    if sweep is not None:
        summary = summary.model_copy(update={"complete": read.summary.complete, "sweep": sweep})
    if folder.finished:
        folder.write_summary(summary)
    if as_json:
        output.emit_json({"run": read.run, "summary": summary.written()})
        return
    from specbench.report import headline

    output.stdout().print(headline(read.run, summary))
