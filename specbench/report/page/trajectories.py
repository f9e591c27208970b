"""Answers of a run token by token; for traced runs also trajectories (the input of each forward) and rounds (the tree
of one forward).

All show the same prompt. Methods that draft guesses have a trajectory, methods that draft trees have a round; simulated
rows have neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from specbench.analysis import MARKS, TELLING, Round, Trajectory, origin_of, round_of, telling_round, trajectory
from specbench.report.answers.generation import EMPTY, END, DraftToken, Step, Token, escaped, legend, letters, shown
from specbench.report.answers.round_tree import SIGNS as ROW_SIGNS
from specbench.report.answers.round_tree import kind_of, title
from specbench.report.answers.states_grid import SIGNS, plain_lines, totals_line
from specbench.report.charts.round_chart import ROWS, round_svg
from specbench.report.document import (
    NOTHING,
    Cell,
    Column,
    Figure,
    Grid,
    GridLine,
    Line,
    Origin,
    Piece,
    Row,
    Source,
    Table,
    Trace,
)
from specbench.report.page.best import best
from specbench.report.tables import cell
from specbench.results import BONUS, PREFILL, RequestRecord

if TYPE_CHECKING:
    from specbench.report.gathering import Run

_METHODS = 3  # trajectories per run
_STATES, _POSITIONS = 20, 24  # per trajectory; the beginning of an answer is enough to show how a method works
_ROUNDS = 4  # per run
_LETTERS = 12  # per token in its cell

_GRID = (
    "Each line is the input of one target forward (--trace): the root, the accepted path, then always the first child; "
    "draft-only rows are left out. right: equal to the answer's token at that position. stationary: right before its "
    "turn, in this state and every later one until it is accepted; fresh random guesses do not count. misplaced: at "
    "least 3 neighbouring tokens, none right at its position, that occur in this order elsewhere in the answer. out: "
    "emitted tokens; a fast-forward emits more than one."
)
_ROUND = (
    f"{TELLING} The accepted path is on the first line. Top pick not accepted: the drafter's best-scored child of a "
    "node on that path, if the target accepted another child or none. log p: natural log-probability of a token after "
    "its parent, under the drafter at temperature 1."
)


def trajectories(run: Run) -> Iterator[Grid]:
    """Grids with the beginning of each method's trajectory."""
    shown_of = [record for record in _shown(run) if _guesses(record)][:_METHODS]
    for at, record in enumerate(shown_of):
        yield _grid(run, trajectory(record), open=at == 0)


def rounds(run: Run) -> Iterator[Figure]:
    """The most informative round of each method that drafts trees."""
    at = 0
    for record in _shown(run):
        number = telling_round(record)
        if number is not None and at < _ROUNDS:
            at += 1
            yield _round(run, round_of(record, number), f"{run.id}-round-{at}")


def _shown(run: Run) -> Iterator[RequestRecord]:
    """The shown answers whose drafts were recorded."""
    for label, record in run.answers.items():
        drafts = record.tokens.drafts if record.tokens else None
        if label not in run.config.simulated and any(draft.ids for draft in drafts or ()):
            yield record


def _guesses(record: RequestRecord) -> bool:
    """Whether the method verifies guesses that its own forwards refine."""
    trace = record.tokens
    assert trace is not None
    return any(
        origin_of(trace, letter) == "guess" and row not in draft.draft_only
        for draft in trace.drafts or ()
        for row, letter in enumerate(draft.origins, 1)
    )


def _grid(run: Run, found: Trajectory, *, open: bool) -> Grid:
    across = min(_POSITIONS, len(found.ids))
    states = [state for state in found.states[:_STATES] if state.cells[0].position < across]
    lines = []
    for state in states:
        fed = [(SIGNS[cell.mark] + _cut(cell.text), cell.mark) for cell in state.cells if cell.position < across]
        lines.append(GridLine(state.number, state.emitted, state.cells[0].position, fed))
    left = [
        f"{count} {what}"
        for count, what in ((len(found.states) - len(states), "states"), (len(found.ids) - across, "positions"))
        if count
    ]
    summary = totals_line(found) + (f" Not shown: {' and '.join(left)}." if left else "")
    return Grid(
        f"Trajectory of {found.method} on {found.prompt_id}",
        summary,
        [_cut(text) for text in found.texts[:across]],
        lines,
        {mark: (SIGNS[mark], meaning) for mark, meaning in MARKS.items()},
        plain_lines(found, states, range(across)),
        Source([run.id], _GRID),
        open,
    )


def _cut(text: str) -> str:
    word = shown(text)
    return word if len(word) <= _LETTERS else f"{word[: _LETTERS - 1]}…"


def _round(run: Run, found: Round, name: str) -> Figure:
    source = Source([run.id], _ROUND)
    heading = (
        f"Round {found.number} of {found.forwards} of {found.method} on {found.prompt_id}: {len(found.rows)} rows, "
        f"{found.accepted} accepted, {found.rejected} rejected"
    )
    columns = [
        Column("row", "row", words=True), Column("depth", "depth"), Column("token", "token", words=True),
        Column("became", "became", words=True), Column("origin", "origin", words=True), Column("log_p", "log p"),
    ]  # fmt: skip
    drawn = found.best_rows(ROWS)
    body = [
        Row(
            [
                Cell(f"{row.row} under {row.parent}" if row.row else "0"), cell.count(row.depth),
                Cell(shown(row.text)), Cell(_became(kind_of(row))), Cell(escaped(row.origin)),
                cell.figure(row.score, 2),
            ],
            run.id, key=f"{found.method} row {row.row}",
        )
        for row in found.rows
        if row.row in drawn
    ]  # fmt: skip
    if found.bonus is not None:
        own = [Cell(_became(BONUS)), cell.count(found.accepted + 1), Cell(shown(found.bonus)), Cell("emitted")]
        body.append(Row([*own, Cell(BONUS), NOTHING], run.id, key=f"{found.method} {BONUS}"))
    table = Table(f"round {found.method}", heading, columns, body, source)
    content = round_svg(found, name, titled=False)
    return Figure(name, heading, content, title(found), source, table, wide=True, natural=True)


def _became(kind: str) -> str:
    return ROW_SIGNS[kind][1].partition(":")[0]


#: Forwards shown per answer; the first ones are enough to show how a method works.
_FORWARDS = 24
_REJECTED = 12  # tokens shown of a forward's longest rejected branch

_TRACE = (
    "A line for each target forward after the prefill, with the rows of its tree and the tokens that it added, marked "
    "by origin. Struck out, for traced runs: the longest rejected branch of drafts. "
)

#: CSS class of each known origin; a method's own origins share the class "other".
_LOOKS = {
    PREFILL: "own", BONUS: "own", "draft": "drafted", "guess": "drafted", "head": "drafted",
    "draft-model": "drafted", "noise": "noise", "block": "block", "pool": "pool", "window": "window",
    "lookup": "lookup",
}  # fmt: skip


def traces(run: Run) -> Iterator[Trace]:
    """Each method's answer to the same prompt, token by token; the fastest row's comes first and is open."""
    first = best(run)
    labels = sorted(run.pictured, key=lambda label: first is None or label != first.method)
    for at, label in enumerate(labels):
        steps = run.pictured[label]
        shown, left = steps[: _FORWARDS + 1], len(steps) - _FORWARDS - 1
        meanings = legend(shown)
        marks = letters(list(meanings))
        origins = {word: Origin(marks[word], _LOOKS.get(word, "other"), meaning) for word, meaning in meanings.items()}
        tokens, forwards = sum(len(step.tokens) for step in steps), len(steps) - 1
        summary = f"{tokens} tokens in {forwards} forwards after the prefill"
        summary += f", of which {left} are not shown" if left > 0 else ""
        source = Source([run.id], _TRACE + f"{END} end of the answer, {EMPTY} a token without text of its own.")
        yield Trace(f"{label} on {run.pictured_prompt}", summary, _lines(shown, origins), origins, source, open=at == 0)


def _lines(steps: Sequence[Step], origins: Mapping[str, Origin]) -> list[Line]:
    found, ended = [], False
    for step in steps:
        pieces = []
        for beyond, tokens in groupby(step.tokens, lambda token: token.beyond):
            if beyond and not ended:
                pieces.append(Piece(END, "", ""))
                ended = True
            pieces += [_piece(token, origins) for token in tokens]
        branches = [[draft for draft in branch if not draft.draft_only] for branch in step.branches]
        rejected = max(branches, key=len, default=[])
        drafts = [_piece(draft, origins) for draft in rejected[:_REJECTED]]
        if len(rejected) > _REJECTED:
            drafts.append(Piece("…", "", ""))
        found.append(Line(step.number, step.rows, pieces, drafts))
    return found


def _piece(token: Token | DraftToken, origins: Mapping[str, Origin]) -> Piece:
    return Piece(escaped(token.text) or EMPTY, token.origin, origins[token.origin].look)
