"""The report's first page: what is in it, what is not, and the fastest method of each run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specbench.records import BASE, BASELINE
from specbench.reporting.report import cells
from specbench.reporting.report.document import Block, Cell, Column, Row, Section, Source, Table, Words
from specbench.reporting.report.headline import known, settings, withheld

if TYPE_CHECKING:
    from specbench import rows
    from specbench.gathering import Gathered, Run

_FORMULA = (
    "The row with the highest speedup over its AR twin, by decode seconds per token; simulated rows and lossy ones "
    "without accuracy are left out."
)


def overview(found: Gathered) -> Section:
    """A row for each run; above them, what could not be used."""
    blocks: list[Block] = []
    if found.skipped:
        blocks.append(Words([f"Not in this report: {each.folder}: {each.why}" for each in found.skipped], "warning"))
    best = {run.id: _best(run) for run in found.runs}
    if found.runs:
        blocks.append(_table(found, best))
    if any(len(candidates(run)) > 1 and best[run.id] for run in found.runs):
        said = "The best of several rows looks better than it is on other prompts; a sweep's --held-out tells."
        blocks.append(Words([said], "notes"))
    return Section("overview", "At a glance", blocks)


def _table(found: Gathered, best: dict[str, rows.Row | None]) -> Table:
    columns = [
        Column("run", "run", words=True), Column("task", "task", words=True), Column("model", "model", words=True),
        Column("device", "device", words=True), Column("prompts", "prompts"),
        Column("best", "highest speedup", words=True), Column("tpf", "TPF"), Column("speedup", "speedup"),
        Column("verdict", "verdict", words=True),
    ]  # fmt: skip
    body = []
    for run in found.runs:
        config, row = run.config, best[run.id]
        device = known(run.run, "environment", "device", "name") or "unknown"
        head = [
            Cell(run.id, under="" if run.complete else "not complete"),
            Cell(f"{config.task.name} v{config.task.version}"),
            Cell(config.model.name, under=config.model.dtype),
            Cell(device, under=f"concurrency {config.concurrency}"),
            cells.count(config.task.prompts),
        ]
        if row is None:
            figures = [cells.NOTHING] * 4
        else:
            which = Cell(row.method, under=settings(config.methods)[row.method])
            figures = [which, cells.figure(row.tpf, 2), cells.ratio(row.speedup), cells.verdict(row.speedup)]
        body.append(Row([*head, *figures], run.id, row.method if row else ""))
    return Table("overview", "", columns, body, Source([run.id for run in found.runs], _FORMULA))


def candidates(run: Run) -> list[rows.Row]:
    """Rows of methods whose speedup may be told; AR of a fine-tuned model's base is none."""
    told = [row for row in run.rows if row.method not in (BASELINE, BASE) and not (row.simulated or row.again)]
    return [row for row in told if row.speedup and not withheld(run, row)]


def _best(run: Run) -> rows.Row | None:
    return max(candidates(run), key=lambda row: row.speedup.value if row.speedup else 0.0, default=None)
