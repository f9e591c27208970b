"""Trajectory: what each target forward was fed at the positions of the answer.

As in Figure 1 of CLLM (Kou et al. 2024, arXiv:2403.00835) and Figure 5 of Jacobi Forcing's post.

A **state** is what one forward was fed, one token a position: its root, which is the last token emitted before it; the
path of its tree that it accepted; and below the end of that path the first child each time. Of a method with one chain
that is the chain. Rows that only generate drafts never belong to it, and what is behind the answer's last token, a stop
token as well, has no position.

The mark of a token is the first of these that holds:

* *root*: emitted before, and fed so that its keys and values are kept.
* *accepted*: a draft that this forward accepted.
* *stationary*: equal to the answer's token of its position although the forward does not reach it, and in every state
  from this one until the forward that accepts it: it was right before the correct prefix arrived and never broke again.
  A fresh guess that was drawn at random (origin ``noise``) is none: CLLM's count begins with what a forward has made of
  the random start, too.
* *right*: equal to the answer's token of its position, and not accepted by this forward.
* *misplaced*: of a run of at least three tokens, neighbours in the state and none of them right in its own place, that
  stand so in the answer at another place. Jacobi Forcing's figure marks such runs; that three make one is our rule.
* *wrong*: all others.

A forward **fast-forwards** where it emits more than one token. CLLM's own count (its Table 3, ``fast_forwarded`` of the
method ``cllm``) is per block of n tokens: the block's tokens over the states until it is right, without a last forward
that only confirms it, one token of each block being free; so it lies above the tokens per forward counted here. Its
stationary tokens are counted a block, of blocks that reached their end; over these they are the same tokens as here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from specbench.analysis.tracing.traces import checked_trace, drafts_of, origin_of, parents_of, roots, token_texts
from specbench.results import Draft, RequestRecord, TokenTrace

CellMark = Literal["root", "accepted", "stationary", "right", "misplaced", "wrong"]

#: What each mark means, in a legend's words and order.
MARKS: Mapping[CellMark, str] = {
    "root": "emitted before this forward",
    "accepted": "draft accepted by this forward",
    "stationary": "right ahead of its turn, until it is accepted",
    "right": "right, but not accepted here, and lost again or drawn at random",
    "misplaced": "in a run of 3 or more that stands elsewhere in the answer",
    "wrong": "any other draft",
}

#: Tokens that a run has at least which counts as right at a wrong place.
RUN = 3

_RANDOM = "noise"


@dataclass(frozen=True)
class Cell:
    """A token of a state: its position in the answer, its row in the tree, and its mark, a key of :data:`MARKS`."""

    position: int
    row: int
    id: int
    text: str
    origin: str
    mark: CellMark


@dataclass(frozen=True)
class State:
    """What one target forward was fed; ``cells`` from the root on, a position each, without gaps.

    ``fast_forward`` is the number of emitted tokens where they are more than one, else 0.
    """

    number: int
    rows: int
    emitted: int
    fast_forward: int
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Totals:
    """A trajectory in figures.

    ``fast_forwards`` are forwards that emitted more than one token, ``fast_forwarded`` their tokens; ``stationary``
    counts positions, ``cells`` tokens of all states by mark.
    """

    forwards: int
    tokens_per_forward: float
    fast_forwards: int
    fast_forwarded: int
    fast_forwarded_per_forward: float
    stationary: int
    cells: Mapping[CellMark, int]


@dataclass(frozen=True)
class Trajectory:
    """A request as states over positions; ``ids`` and ``texts`` are of the answer's tokens, shape [positions]."""

    request_id: str
    method: str
    prompt_id: str
    repeat: int
    turn: int
    ids: Sequence[int]
    texts: Sequence[str]
    states: Sequence[State]
    totals: Totals


def trajectory(record: RequestRecord) -> Trajectory:
    """The trajectory of a request from a traced run; UsageError where it has none."""
    drafts = drafts_of(record)
    trace = checked_trace(record)
    texts = token_texts(record, trace)
    fed = [_fed(draft, root, trace, record, texts) for draft, root in zip(drafts, roots(record), strict=True)]
    marks = _marks(fed, drafts, record.output_ids)
    states = []
    for number, (cells, marked, draft, emitted) in enumerate(
        zip(fed, marks, drafts, record.accepted_lengths, strict=True), 1
    ):
        made = [Cell(*cell, mark) for cell, mark in zip(cells, marked, strict=True)]
        states.append(State(number, len(draft.ids) + 1, emitted, emitted if emitted > 1 else 0, made))
    return Trajectory(
        record.request_id, record.method, record.prompt_id, record.repeat, record.turn, record.output_ids, texts,
        states, _totals(states),
    )  # fmt: skip


_Fed = tuple[int, int, int, str, str]  # a cell without its mark


def _fed(draft: Draft, root: int, trace: TokenTrace, record: RequestRecord, texts: Sequence[str]) -> list[_Fed]:
    """The cells of a forward whose root stands at a position, as far as the answer goes."""
    cells: list[_Fed] = [(root, 0, record.output_ids[root], texts[root], origin_of(trace, trace.origins[root]))]
    pieces = trace.pieces or {}
    for position, row in enumerate(state_rows(draft), root + 1):
        if position == len(record.output_ids):
            break
        token = draft.ids[row - 1]
        cells.append((position, row, token, pieces.get(token, ""), origin_of(trace, draft.origins[row - 1])))
    return cells


def state_rows(draft: Draft) -> list[int]:
    """The rows of a tree that are its state, root left out: the accepted path, then the first child each time."""
    only = set(draft.draft_only)
    first: dict[int, int] = {}
    for row, parent in enumerate(parents_of(draft), 1):
        if row not in only:
            first.setdefault(parent, row)
    rows = list(draft.path)
    while (child := first.get(rows[-1] if rows else 0)) is not None:
        rows.append(child)
    return rows


def _marks(fed: Sequence[Sequence[_Fed]], drafts: Sequence[Draft], answer: Sequence[int]) -> list[list[CellMark]]:
    """The marks of all cells; backwards, for what is stationary depends on the states behind."""
    runs = {tuple(answer[at : at + RUN]) for at in range(len(answer) - RUN + 1)}
    held: set[int] = set()  # positions that are right from the state behind on until they are accepted
    found: list[list[CellMark]] = []
    for cells, draft in zip(reversed(fed), reversed(drafts), strict=True):
        accepted, marks, holds = set(draft.path), [], set()
        for position, row, token, _, origin in cells:
            mark: CellMark = "wrong"
            if row == 0:
                mark = "root"
            elif row in accepted:
                mark = "accepted"
                holds.add(position)
            elif token == answer[position]:
                mark = "right"
                if position in held:
                    holds.add(position)
                    mark = "right" if origin == _RANDOM else "stationary"
            marks.append(mark)
        _misplace(marks, [token for _, _, token, _, _ in cells], runs)
        held = holds
        found.append(marks)
    return found[::-1]


def _misplace(marks: list[CellMark], tokens: Sequence[int], runs: set[tuple[int, ...]]) -> None:
    """Marks the wrong tokens of a state that are in a run of the answer's; as none is right, the run is elsewhere."""
    wrong = [mark == "wrong" for mark in marks]
    for at in range(len(tokens) - RUN + 1):
        if all(wrong[at : at + RUN]) and tuple(tokens[at : at + RUN]) in runs:
            marks[at : at + RUN] = ["misplaced"] * RUN


def _totals(states: Sequence[State]) -> Totals:
    forwards, fast = len(states), [state.fast_forward for state in states if state.fast_forward]
    counts = Counter(cell.mark for state in states for cell in state.cells)
    return Totals(
        forwards=forwards,
        tokens_per_forward=sum(state.emitted for state in states) / forwards,
        fast_forwards=len(fast),
        fast_forwarded=sum(fast),
        fast_forwarded_per_forward=sum(fast) / forwards,
        stationary=len({cell.position for state in states for cell in state.cells if cell.mark == "stationary"}),
        cells={mark: counts[mark] for mark in MARKS},
    )
