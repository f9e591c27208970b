"""Pool runs that differ only in their tasks: one table over all tasks, and a chart task by task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from specbench.analysis import poolable, pooled, unsure_speedup
from specbench.report.charts import cards, style
from specbench.report.document import Block, Cell, Column, Figure, Row, Source, Table
from specbench.report.tables import cell
from specbench.report.tables.cell import name as named
from specbench.report.tables.columns import E2E, METHOD, PROMPTS, SPEEDUP, TOK_S, TPF, VERDICT, cells_of
from specbench.report.tables.run_table import withheld
from specbench.results import BASELINE

if TYPE_CHECKING:
    from specbench.report.gathering import Run
    from specbench.results import Speedup

_FORMULA = (
    "As in the tables of the tasks, over the prompts of all tasks, weighted by seconds and tokens: long answers count "
    "more. Intervals: 95% paired bootstrap over prompts."
)


def pooled_blocks(runs: Sequence[Run]) -> Iterator[Block]:
    """A table and a chart for each group of runs that differ only in their tasks."""
    for group in _groups(runs):
        yield _table(group)
        yield from _across(group)


def _across(group: Sequence[Run]) -> Iterator[Figure]:
    """A chart of each method's speedup on each task; no chart if a run was disturbed."""
    if any(run.summary.unsure for run in group):
        return
    rows: dict[str, dict[str, Speedup]] = {}
    for run in group:
        for row in run.rows:
            if row.speedup and not row.baseline and not withheld(run, row):
                rows.setdefault(named(row), {})[run.config.task.name] = row.speedup
    if not rows:
        return
    tasks = [run.config.task.name for run in group]
    columns = [METHOD, *(Column(task, task) for task in tasks)]
    body = [Row([Cell(label), *(cell.ratio(found.get(task)) for task in tasks)], group[0].id, label)
            for label, found in rows.items()]  # fmt: skip
    source = Source([run.id for run in group], "Speedup over AR by decode seconds per token, with its 95% interval.")
    name = f"{group[0].id}-across"
    says = "; ".join(
        f"{label}: {', '.join(f'{task} {speedup.value:.2f}' for task, speedup in found.items())}"
        for label, found in rows.items()
    )
    data = Table(f"across {', '.join(tasks)}", "Task by task", columns, body, source)
    yield Figure(name, data.title, style.svg(cards.across(rows), name, says), says, source, data)


def _table(group: Sequence[Run]) -> Table:
    tasks = ", ".join(run.config.task.name for run in group)
    columns = [METHOD, PROMPTS, TPF, TOK_S, SPEEDUP, VERDICT, E2E]
    hidden = {row.method for run in group for row in run.rows if withheld(run, row)}
    disturbed = any(run.summary.unsure for run in group)
    body = []
    for row in pooled([{label: tally.costs for label, tally in run.tallies.items()} for run in group]):
        if row.method in hidden:
            continue
        row = replace(row, speedup=unsure_speedup(row.speedup)) if disturbed else row
        body.append(Row(cells_of(columns, row), group[0].id, row.method, strong=row.method == BASELINE))
    source = Source([run.id for run in group], _FORMULA)
    return Table(f"pooled {tasks}", f"Pooled over {tasks}", columns, body, source)


def _groups(runs: Sequence[Run]) -> list[list[Run]]:
    found: list[list[Run]] = []
    for run in runs:
        group = next((group for group in found if all(poolable(run.config, other.config) for other in group)), None)
        if group is None:
            found.append([run])
        else:
            group.append(run)
    return [group for group in found if len(group) > 1 and all(run.complete for run in group)]
