"""Positions in the report: speedup over the place in the answer, as a picture with its table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specbench.report.page import cells
from specbench.report.page.document import Cell, Column, Figure, Row, Source, Table
from specbench.report.page.headline import withheld
from specbench.report.pictures import cards, style
from specbench.report.terminal.figures import name as named

if TYPE_CHECKING:
    from specbench.report.gathering import Run

_FORMULA = (
    "Tokens after an answer's first, in windows of its length; a forward that kept tokens on both sides of an end is "
    "shared out. Speedup in a window: of the answers that reach it on both sides, with its 95% interval. So far: of "
    "their beginnings up to there, as a smaller token budget would have it."
)


def position_figures(run: Run) -> list[Figure]:
    """The curve of a run's methods; none where no answer has a second window."""
    shown = [row for row in run.rows if not withheld(run, row) and not row.simulated]
    curves = {named(row): [at for at in row.positions if at.speedup] for row in shown}
    curves = {label: found for label, found in curves.items() if len(found) > 1}
    if not curves:
        return []
    source = Source([run.id], _FORMULA)
    columns = [
        Column("method", "method", words=True), Column("tokens", "tokens", words=True), Column("prompts", "prompts"),
        Column("tokens_per_forward", "TPF"), Column("speedup", "speedup"), Column("so_far", "so far"),
    ]  # fmt: skip
    body = []
    for label, found in curves.items():
        for at in found:
            window = f"{at.start + 1} to {at.end}"
            figures = [
                cells.count(at.prompts),
                cells.figure(at.tokens_per_forward, 2),
                cells.one_line(at.speedup),
                cells.one_line(at.so_far),
            ]
            body.append(Row([Cell(label), Cell(window), *figures], run.id, label, key=f"{label} / {window}"))
    title = "Speedup over the place in the answer"
    behind = Table("positions", title, columns, body, source)
    says = "; ".join(
        f"{label}: " + ", ".join(f"{at.speedup.value:.2f} up to {at.end}" for at in found if at.speedup)
        for label, found in curves.items()
    )
    name = f"{run.id}-positions"
    return [Figure(name, title, style.svg(cards.positions(curves), name, says), says, source, behind)]
