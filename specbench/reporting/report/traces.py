"""A generation of each method as coloured tokens, a line per forward: how these methods work is seen by looking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from specbench.reporting.generation import EMPTY, END, escaped, letters
from specbench.reporting.report.document import Line, Origin, Piece, Source, Trace
from specbench.reporting.trace import DraftToken, Step, Token, legend
from specbench.tracing import BONUS, PREFILL

if TYPE_CHECKING:
    from specbench.gathering import Run

#: Forwards of one picture; the first ones show the method as well as all of them do.
_STEPS = 24
_OPEN = 4  # pictures of a run; the others are folded
_REJECTED = 12  # drafts of a forward's longest rejected branch that are shown

_FORMULA = (
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
    """A picture of each method's answer to one prompt, the same for all of them."""
    for at, (label, steps) in enumerate(run.pictured.items()):
        shown, left = steps[: _STEPS + 1], len(steps) - _STEPS - 1
        meanings = legend(shown)
        marks = letters(list(meanings))
        origins = {word: Origin(marks[word], _LOOKS.get(word, "other"), meaning) for word, meaning in meanings.items()}
        tokens, forwards = sum(len(step.tokens) for step in steps), len(steps) - 1
        said = f"{tokens} tokens in {forwards} forwards after the prompt's"
        said += f", of which {left} are not shown" if left > 0 else ""
        source = Source([run.id], _FORMULA + f"{END} the answer's end, {EMPTY} a token without text of its own.")
        yield Trace(f"{label} on {run.pictured_prompt}", said, _lines(shown, origins), origins, source, open=at < _OPEN)


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
