"""The input of each target forward at the positions of the answer.

As in Figure 1 of CLLM (Kou et al. 2024, arXiv:2403.00835) and Figure 5 of Jacobi Forcing's post.

A **state** is the input of one forward, with one token per position: the root (the last token emitted before), the
accepted path of its tree, and after the end of that path always the first child. For a method with one chain this is
the chain. Draft-only rows never belong to it, and tokens after the answer's last token (or stop token) have no
position.

The mark of a token is the first of these that applies:

* *root*: emitted before; part of the input so that its keys and values are stored.
* *accepted*: a draft that this forward accepted.
* *stationary*: equal to the answer's token at its position, in this state and every later one until a forward accepts
  it: it was right before the correct prefix reached it and stayed right. A fresh random guess (origin ``noise``) does
  not count: CLLM's count, too, starts with what a forward has made of the random start.
* *right*: equal to the answer's token at its position, but not accepted by this forward.
* *misplaced*: in a sequence of at least three consecutive tokens, none of them right at its position, that occurs
  elsewhere in the answer. Jacobi Forcing's figure marks such sequences; the length of three is our choice.
* *wrong*: all others.

A forward **fast-forwards** if it emits more than one token. CLLM's own count (its Table 3, ``fast_forwarded`` of the
method ``cllm``) is per block of n tokens: the block's tokens divided by the states until it is right, without a last
forward that only confirms it, and with one free token per block. It is therefore higher than the tokens per forward
counted here. CLLM counts stationary tokens per completed block; in these blocks they are the same tokens as here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from specbench.analysis.tracing.traces import checked_trace, drafts_of, origin_of, parents_of, roots, token_texts
from specbench.results import Draft, RequestRecord, TokenTrace

CellMark = Literal["root", "accepted", "stationary", "right", "misplaced", "wrong"]

#: Meaning of each mark, in the order of a legend.
MARKS: Mapping[CellMark, str] = {
    "root": "emitted before this forward",
    "accepted": "draft accepted by this forward",
    "stationary": "right before its turn, and until it is accepted",
    "right": "right but not accepted here; lost again later, or a random guess",
    "misplaced": "part of 3 or more tokens that occur elsewhere in the answer",
    "wrong": "any other draft",
}

#: Fewest tokens of a misplaced sequence.
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
    """The input of one target forward; ``cells`` from the root on, one per position, without gaps.

    ``fast_forward`` is the number of emitted tokens if there are several, otherwise 0.
    """

    number: int
    rows: int
    emitted: int
    fast_forward: int
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Totals:
    """Totals of a trajectory.

    ``fast_forwards`` counts forwards that emitted more than one token, ``fast_forwarded`` their tokens; ``stationary``
    counts positions, ``cells`` counts the tokens of all states by mark.
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
    """A request as states over positions; ``ids`` and ``texts`` of the answer's tokens, shape [positions]."""

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
    """The trajectory of a request from a traced run; UsageError without a trace."""
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
    """The cells of a forward whose root is at position ``root``, up to the end of the answer."""
    cells: list[_Fed] = [(root, 0, record.output_ids[root], texts[root], origin_of(trace, trace.origins[root]))]
    pieces = trace.pieces or {}
    for position, row in enumerate(state_rows(draft), root + 1):
        if position == len(record.output_ids):
            break
        token = draft.ids[row - 1]
        cells.append((position, row, token, pieces.get(token, ""), origin_of(trace, draft.origins[row - 1])))
    return cells


def state_rows(draft: Draft) -> list[int]:
    """The rows of a tree that form its state, without the root: the accepted path, then always the first child."""
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
    """The marks of all cells, computed backwards because stationary tokens depend on later states."""
    runs = {tuple(answer[at : at + RUN]) for at in range(len(answer) - RUN + 1)}
    held: set[int] = set()  # positions that are right from the next state on until accepted
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
    """Mark the wrong tokens of a state that form a sequence of the answer; since none is right, it is elsewhere."""
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
