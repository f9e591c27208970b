"""Answers of a run token by token, and of a traced one its trajectories and rounds: what its forwards were fed, and
the trees that they verified.

Both are of the prompt that is pictured token by token: a trajectory of methods that draft guesses, a round of methods
that draft trees, neither of simulated rows.
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

_METHODS = 3  # trajectories of a run, of the first methods that draft guesses
_STATES, _POSITIONS = 20, 24  # of one, from the answer's beginning: they show a method as well as all of them do
_ROUNDS = 4  # of a run
_LETTERS = 12  # of a token in its cell

_GRID = (
    "A line is what one target forward was fed (--trace): its root, the path that it accepted, below that the first "
    "child each time; draft-only rows are left out. Right: equal to the answer's token of that position. Stationary: "
    "right ahead of its turn in this state and in all until it is accepted, fresh random guesses left out. Misplaced: "
    "at least 3 neighbours, none right in its place, that stand so elsewhere in the answer. out: tokens emitted; a "
    "fast-forward emits more than one."
)
_ROUND = (
    f"{TELLING} The accepted path is on the first line. Top pick not taken: the child that the drafter scored highest "
    "at a node of that path, where another or none was accepted. log p: natural log-probability that the drafter gave "
    "a token under its parent, at temperature 1."
)


def trajectories(run: Run) -> Iterator[Grid]:
    """The beginning of each method's trajectory."""
    shown_of = [record for record in _shown(run) if _guesses(record)][:_METHODS]
    for at, record in enumerate(shown_of):
        yield _grid(run, trajectory(record), open=at == 0)


def rounds(run: Run) -> Iterator[Figure]:
    """The round of each tree-drafting method that tells most."""
    at = 0
    for record in _shown(run):
        number = telling_round(record)
        if number is not None and at < _ROUNDS:
            at += 1
            yield _round(run, round_of(record, number), f"{run.id}-round-{at}")


def _shown(run: Run) -> Iterator[RequestRecord]:
    """The pictured answers whose drafts are on record."""
    for label, record in run.answers.items():
        drafts = record.tokens.drafts if record.tokens else None
        if label not in run.config.simulated and any(draft.ids for draft in drafts or ()):
            yield record


def _guesses(record: RequestRecord) -> bool:
    """Whether a method verifies guesses that its forwards refresh."""
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
    said = totals_line(found) + (f" Not shown: {' and '.join(left)}." if left else "")
    return Grid(
        f"Trajectory of {found.method} on {found.prompt_id}",
        said,
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


#: Forwards of one picture; the first ones show the method as well as all of them do.
_FORWARDS = 24
_REJECTED = 12  # drafts of a forward's longest rejected branch that are shown

_TRACE = (
    "A line for each target forward after the prompt's, with the rows of its tree: the tokens that it added, marked by "
    "how they came. Struck out, where the run was traced: the longest branch of drafts that the target did not follow. "
)

#: Origins that have a look of their own in the page; what a method calls otherwise shares one.
_LOOKS = {
    PREFILL: "said", BONUS: "said", "draft": "drafted", "guess": "drafted", "head": "drafted",
    "draft-model": "drafted", "noise": "noise", "block": "block", "pool": "pool", "window": "window",
    "lookup": "lookup",
}  # fmt: skip


def traces(run: Run) -> Iterator[Trace]:
    """A picture of each method's answer to one prompt, the same for all of them: first and open the fastest row's."""
    first = best(run)
    labels = sorted(run.pictured, key=lambda label: first is None or label != first.method)
    for at, label in enumerate(labels):
        steps = run.pictured[label]
        shown, left = steps[: _FORWARDS + 1], len(steps) - _FORWARDS - 1
        meanings = legend(shown)
        marks = letters(list(meanings))
        origins = {word: Origin(marks[word], _LOOKS.get(word, "other"), meaning) for word, meaning in meanings.items()}
        tokens, forwards = sum(len(step.tokens) for step in steps), len(steps) - 1
        said = f"{tokens} tokens in {forwards} forwards after the prompt's"
        said += f", of which {left} are not shown" if left > 0 else ""
        source = Source([run.id], _TRACE + f"{END} the answer's end, {EMPTY} a token without text of its own.")
        yield Trace(f"{label} on {run.pictured_prompt}", said, _lines(shown, origins), origins, source, open=at == 0)


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
