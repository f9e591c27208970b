"""Chart of a round: the tree that one forward verified, depth from left to right, accepted path on the first line."""

from __future__ import annotations

from collections import defaultdict

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from specbench.analysis import Round
from specbench.decoding import ORIGINS
from specbench.report.answers.generation import escaped, shown
from specbench.report.answers.round_tree import SIGNS, kind_of, scored, title
from specbench.report.answers.states_grid import fit_width
from specbench.report.charts import sheet, style
from specbench.results import BONUS

ROWS = 40  # of a tree that a page shows, about
DEPTH = 9  # of rows that a page shows; an accepted path is drawn to its end
_BOX, _GAP, _LINE, _HIGH, _LEFT = 74.0, 36.0, 24.0, 18.0, 10.0
_TIGHT = 10.0  # gap without shares
_COLUMNS = int((_BOX - 12) / sheet.COLUMN)
_STRIPE = 6.0  # of a box, in the colour of the row's origin
_ORIGINS = len(style.PALETTE)  # that have a colour of their own; the rows of others have no stripe
_ACROSS = 12  # columns of a picture of all rows; deeper rows continue below
_BAND = 22.0  # above each of these parts


@style.styled(style.CARD)
def round_svg(found: Round, name: str, *, titled: bool = True, whole: bool = False) -> str:
    """An SVG document of a round, with a legend of signs and origins.

    In a page, large trees show only their best rows and the number of the others; ``whole`` draws all of them, twelve
    columns side by side. ``name`` is unique in a page.
    """
    drawn = set(range(len(found.rows)))
    if not whole:
        drawn = {row for row in found.best_rows(ROWS) if found.rows[row].accepted or found.rows[row].depth <= DEPTH}
    places = _places(found, drawn)
    kinds = [kind for kind in SIGNS if kind in {_kind(found, row) for row in places}]
    origins = list(dict.fromkeys(row.origin for row in found.rows[1:] if row.row in drawn))[:_ORIGINS]
    top = 44.0 if titled else 14.0
    deepest = max(column for column, _ in places.values())
    bands = _bands(places, whole and deepest >= _ACROSS)
    lines = sum(len(each) for each in bands.values())
    gap = _GAP if any(row.score is not None for row in found.rows) else _TIGHT
    columns = min(deepest + 1, _ACROSS) if len(bands) > 1 else deepest + 1
    width = max(760.0, _LEFT + columns * (_BOX + gap))
    bottom = top + _LINE * lines + (_BAND * len(bands) if len(bands) > 1 else 0)
    height = bottom + 40 + _LEGEND_LINE * len(origins) + 22
    figure, axes = sheet.sheet(width, height)
    if titled:
        sheet.words(axes, _LEFT, 16, style.cut(title(found), width - 20, bold=True), weight="bold", fontsize=12)
    spots = _spots(places, bands, top, gap)
    if len(bands) > 1:
        for band in bands:
            above = min(spots[row][1] for row, (column, _) in places.items() if column // _ACROSS == band)
            caption = f"{band * _ACROSS} to {min(deepest, (band + 1) * _ACROSS - 1)} tokens after the root"
            sheet.words(axes, _LEFT, above - 10, caption, fontsize=9.5, color=style.FAINT)
    _edges(axes, found, places, spots, gap)
    boxes, stripes = defaultdict(list), defaultdict(list)
    for row, (left, above) in spots.items():
        boxes[_kind(found, row)].append((left, above, _BOX, _HIGH))
        if row and row in drawn:
            stripes[found.rows[row].origin].append((left, above, _STRIPE, _HIGH))
    for kind, made in boxes.items():
        sheet.boxes(axes, kind, made)
    for at, origin in enumerate(origins):
        sheet.filled(axes, style.PALETTE[at], stripes[origin])
    for row, (start, above) in spots.items():
        kind, text = _kind(found, row), found.bonus if row == _BONUS_ROW else found.rows[row].text
        colour = style.FAINT if kind in sheet.FAINT else style.INK
        left, middle = start + _STRIPE + 3, above + _HIGH / 2
        sheet.words(axes, left, middle, fit_width(f"{SIGNS[kind][0]}{shown(text or '')}", _COLUMNS), color=colour)
    scores = any(row.score is not None for row in found.rows)
    _legend(axes, kinds, origins, bottom + 16, scores=scores)
    if left_out := len(found.rows) - len(drawn):
        sheet.words(axes, _LEFT, height - 8, f"{left_out} more rows are not shown", color=style.FAINT)
    return sheet.svg(figure, name, title(found))


_BONUS_ROW = -1  # in the place of a row
_Places = dict[int, tuple[int, int]]  # row -> column and line
_LEGEND_LINE = 19.0


def _kind(found: Round, row: int) -> str:
    return BONUS if row == _BONUS_ROW else kind_of(found.rows[row])


def _places(found: Round, drawn: set[int]) -> _Places:
    """Column and line of each row; a row's first child is on the same line."""
    places: _Places = {}
    lines = 0
    waiting: list[tuple[int, bool]] = [(0, False)]  # rows, and whether each begins a line
    while waiting:
        row, begins = waiting.pop()
        lines += begins
        places[row] = (found.accepted + 1 if row == _BONUS_ROW else found.rows[row].depth, lines)
        if row == _BONUS_ROW:
            continue
        under = [child.row for child in found.children.get(row, ()) if child.row in drawn]
        ends = found.rows[row].accepted and not any(found.rows[child].accepted for child in under)
        under = [_BONUS_ROW] * (ends and found.bonus is not None) + under
        waiting += [(child, at > 0) for at, child in reversed(list(enumerate(under)))]
    return places


def _bands(places: _Places, split: bool) -> dict[int, list[int]]:
    """The lines of each part of a picture; a part is :data:`_ACROSS` columns wide."""
    made: dict[int, set[int]] = defaultdict(set)
    for column, line in places.values():
        made[column // _ACROSS if split else 0].add(line)
    return {band: sorted(made[band]) for band in sorted(made)}


def _spots(places: _Places, bands: dict[int, list[int]], top: float, gap: float) -> dict[int, tuple[float, float]]:
    """Left and top of each row's box."""
    above, starts = top, {}
    for band, lines in bands.items():
        above += _BAND if len(bands) > 1 else 0
        starts[band] = {line: above + _LINE * at for at, line in enumerate(lines)}
        above += _LINE * len(lines)
    split = len(bands) > 1
    return {
        row: (
            _LEFT + (column % _ACROSS if split else column) * (_BOX + gap),
            starts[column // _ACROSS if split else 0][line],
        )
        for row, (column, line) in places.items()
    }


def _edges(axes: Axes, found: Round, places: _Places, spots: dict[int, tuple[float, float]], gap: float) -> None:
    """Draw lines from each row to its children, with the drafter's probabilities."""
    paths: dict[bool, list[list[tuple[float, float]]]] = {False: [], True: []}
    end = next((row.row for row in reversed(found.rows) if row.accepted and row.depth == found.accepted), 0)
    for row, (right, above) in spots.items():
        if row == 0:
            continue
        parent = end if row == _BONUS_ROW else found.rows[row].parent
        left, stop = right - gap, above + _HIGH / 2
        start = spots[parent][1] + _HIGH / 2
        on = row == _BONUS_ROW or found.rows[row].accepted
        if spots[parent][0] > right:  # the parent is in the part above
            paths[on].append([(right - 6, stop), (right, stop)])
        else:
            paths[on].append([(left, start), (left + 4, start), (left + 4, stop), (right, stop)])
        share = "" if row == _BONUS_ROW else scored(found.rows[row])[1]
        if share:
            sheet.words(axes, right - 2, stop - 6, share, ha="right", fontsize=8.5, color=style.FAINT)
    for on, lines in paths.items():
        colour, wide = (style.INK, 1.6) if on else ("#B5B5B0", 0.8)
        axes.add_collection(LineCollection(lines, colors=colour, linewidths=wide))


def _legend(axes: Axes, kinds: list[str], origins: list[str], middle: float, *, scores: bool) -> None:
    left = _LEFT
    for kind in kinds:
        sign, meaning = SIGNS[kind]
        text = meaning.partition(":")[0]
        sheet.boxes(axes, kind, [(left, middle - 8, 20, 16)])
        sheet.words(axes, left + 5, middle, sign)
        sheet.words(axes, left + 25, middle, text, fontsize=9.5)
        left += 38 + 5.9 * len(text)
    for at, origin in enumerate(origins):
        line = middle + 20 + _LEGEND_LINE * at
        sheet.filled(axes, style.PALETTE[at], [(_LEFT, line - 8, _STRIPE, 16)])
        explained = ORIGINS.get(origin, "")
        sheet.words(axes, _LEFT + 11, line, escaped(origin) + (f": {explained}" if explained else ""), fontsize=9.5)
    if scores:
        text = "%: probability of a token after its parent, under the drafter"
        line = middle + 20 + _LEGEND_LINE * len(origins)
        sheet.words(axes, _LEFT, line, text, fontsize=9.5, color=style.FAINT)
