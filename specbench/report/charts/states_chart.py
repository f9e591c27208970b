"""Chart of a trajectory: a row per state, a column per position, and a box with a sign for each token."""

from __future__ import annotations

from collections import defaultdict

from specbench.analysis import MARKS, Trajectory
from specbench.report.answers.generation import shown
from specbench.report.answers.states_grid import SIGNS, fit_width, title, totals_line
from specbench.report.charts import sheet, style

STATES, POSITIONS = 96, 128  # that are drawn at most, from the first on
_CELL, _LINE, _LEFT, _TOP = 62.0, 19.0, 84.0, 74.0
_COLUMNS = int((_CELL - 6) / sheet.COLUMN)


@style.styled(style.CARD)
def trajectory_svg(found: Trajectory, name: str) -> str:
    """An SVG document of a trajectory, with title, totals and legend.

    Long trajectories show only their beginning, and say so. ``name`` is unique in a page.
    """
    states = found.states[:STATES]
    across = min(POSITIONS, len(found.ids), 1 + max(state.cells[-1].position for state in states))
    width, height = max(760.0, _LEFT + _CELL * across + 12), _TOP + _LINE * (len(states) + 2) + 34
    figure, axes = sheet.sheet(width, height)
    sheet.words(axes, 10, 16, style.cut(title(found), width - 20, bold=True), weight="bold", fontsize=12)
    sheet.words(axes, 10, 36, style.cut(totals_line(found), width - 20))
    if len(states) < len(found.states) or across < len(found.ids):
        left_out = f"drawn: the first {len(states)} states and {across} positions"
        sheet.words(axes, 10, 54, left_out, color=style.FAINT)
    places, drawn = defaultdict(list), []
    for at in range(across):
        left = _LEFT + _CELL * at
        sheet.words(axes, left + 3, _TOP, str(at), color=style.FAINT, fontsize=9)
        sheet.words(axes, left + 3, _TOP + _LINE, fit_width(shown(found.texts[at]), _COLUMNS), weight="bold")
    for line, state in enumerate(states, 2):
        top = _TOP + _LINE * line
        sheet.words(axes, 10, top, f"{state.number}", color=style.FAINT)
        sheet.words(axes, _LEFT - 10, top, f"+{state.emitted}", ha="right")
        for cell in state.cells:
            if cell.position < across:
                left = _LEFT + _CELL * cell.position
                places[cell.mark].append((left, top - 8, _CELL - 3, _LINE - 3))
                drawn.append((left + 3, top, SIGNS[cell.mark] + shown(cell.text), cell.mark))
    for mark, boxes in places.items():
        sheet.boxes(axes, mark, boxes)
    for left, top, label, mark in drawn:
        sheet.words(
            axes, left, top, fit_width(label, _COLUMNS), color=style.FAINT if mark in sheet.FAINT else style.INK
        )
    sheet.words(axes, 10, _TOP, "forward", color=style.FAINT, fontsize=9)
    sheet.words(axes, 10, _TOP + _LINE, "answer", color=style.FAINT, fontsize=9)
    left = 10.0
    for mark in MARKS:
        sheet.boxes(axes, mark, [(left, height - 26, 22, 16)])
        sheet.words(axes, left + 5, height - 18, SIGNS[mark])
        sheet.words(axes, left + 28, height - 18, mark)
        left += 112
    return sheet.svg(figure, name, f"{title(found)}. {totals_line(found)}")
