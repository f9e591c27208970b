"""Grade the answers of an existing run, without generating anything again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from specbench.analysis import RunContents, read_run, summarise
from specbench.evals import score_in_child
from specbench.results import MEMORY, RunConfig, RunFolder, RunSummary, read_head


def lacks_verdicts(folder: RunFolder, config: RunConfig) -> bool:
    """Whether a finished run was made with ``--no-score``, so that its answers could be graded but are not."""
    summary = folder.summary()
    judged = summary is None or any(row.accuracy is not None for row in summary.rows)
    return bool(config.task.metric) and not config.simulated and not judged


def rescore(
    folder: RunFolder, data_dir: Path | None, say: Callable[[str], None], workers: int | None = None
) -> RunSummary:
    """Grade the answers of a run, ``workers`` at a time (default: all cores), and return its summary with the new
    verdicts.

    The ``summary.json`` of a finished run is rewritten.
    """
    before = folder.summary()
    sweep = before.sweep if before else None
    # A sweep's summary covers the prompts to choose by, which sweep.json lists.
    chosen_by = None if sweep is None else {*read_head(folder.path.resolve().parent)["tuning"]}
    verdicts = score_in_child(folder.path, data_dir, say, workers)
    read = read_run(folder.path, scored=False)  # the summary has the former verdicts
    graded = {row.method: row.lossless for row in read.summary.rows if row.lossless}
    records = [record for record in read.records if chosen_by is None or record.prompt_id in chosen_by]
    held = {row.method: row.memory.model_dump() for row in read.summary.rows if row.memory}
    engine = {**read.summary.engine, **({MEMORY: held} if held else {})}
    own = {row.method: row.other.over_own_ar for row in read.summary.rows if row.other}
    over_own = {label: each.lossless for label, each in own.items() if each and each.lossless}
    given = {"verdicts": verdicts, "lossless": graded, "engine": engine, "over_own": over_own}
    summary = summarise(RunContents.of(folder, read.config, records, **given))
    if sweep is not None:
        summary = summary.model_copy(update={"complete": read.summary.complete, "sweep": sweep})
    if folder.finished:
        folder.write_summary(summary)
    return summary
