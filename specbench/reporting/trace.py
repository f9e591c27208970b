"""A generation step by step, from its record alone: what every forward verified, and how each token came.

Data for those who draw it, in the terminal or in a page: nothing here is escaped, and texts are what a model wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from specbench.engine.tree import ORIGINS
from specbench.errors import UsageError
from specbench.records import LETTERS, Draft, RequestRecord, TokenTrace
from specbench.tracing import BONUS, PREFILL

#: What the origins mean that come with specbench, in the order of a legend. Methods may use other words.
MEANINGS: Mapping[str, str] = {
    PREFILL: "first token, from the prompt's forward",
    BONUS: "the target's own next token",
    **ORIGINS,
}


@dataclass(frozen=True)
class Token:
    """A token of the answer.

    Attributes:
        id: of the vocabulary.
        text: what it adds to the text; "" for special tokens, and where the next one completes its character.
        origin: a key of :data:`MEANINGS`, or the method's own word.
        beyond: no part of the answer's text: the stop token, or one wholly in or behind a stop string.
    """

    id: int
    text: str
    origin: str
    beyond: bool


@dataclass(frozen=True)
class DraftToken:
    """A drafted row of a step's tree.

    Attributes:
        row: from 1; row 0 is the root, the last token before this step.
        parent: row it hangs under.
        id: of the vocabulary.
        text: of the id by itself, so that half a character is "�".
        origin: as :attr:`Token.origin`.
        accepted: emitted by this step (also where it was then dropped, behind the stop or the budget).
        draft_only: could not be accepted, its forward only generates drafts.
    """

    row: int
    parent: int
    id: int
    text: str
    origin: str
    accepted: bool
    draft_only: bool


@dataclass(frozen=True)
class Step:
    """One target forward.

    Attributes:
        number: from 1; 0 is the prefill.
        rows: of its tree; None of the prefill.
        tokens: what it emitted, as far as it was kept.
        drafts: its tree without the root, in the order of its rows; None where the run was made without ``--trace``,
            and of the prefill.
    """

    number: int
    rows: int | None
    tokens: list[Token]
    drafts: list[DraftToken] | None = None

    @cached_property
    def branches(self) -> list[list[DraftToken]]:
        """The rows that were not emitted, each in one chain: a row's first child goes on with it, others begin anew."""
        chains: list[list[DraftToken]] = []
        ends: dict[int, list[DraftToken]] = {}  # last row of a chain -> the chain
        for draft in self.drafts or ():
            if not draft.accepted:
                chain = ends.pop(draft.parent, None)
                if chain is None:
                    chains.append(chain := [])
                chain.append(draft)
                ends[draft.row] = chain
        return chains


def steps(record: RequestRecord) -> list[Step]:
    """The prefill and every target forward of a request, in order.

    Raises:
        UsageError: an older version recorded it, without what this needs; or its trace contradicts its counts.
    """
    trace = record.tokens
    if trace is None:
        raise UsageError(f"{record.key} was recorded before tokens were traced; repeat its run to see its steps")
    if said := _contradiction(record, trace):
        raise UsageError(f"the trace of {record.key} is damaged: {said}; run it again")
    tokens = list(_tokens(record, trace))
    ends = accumulate(record.accepts, initial=1)
    drafts: Sequence[Draft | None] = trace.drafts or [None] * record.forwards
    found = [Step(0, None, tokens[:1])]
    for number, ((start, end), rows, draft) in enumerate(zip(pairwise(ends), trace.rows, drafts, strict=True), 1):
        found.append(Step(number, rows, tokens[start:end], None if draft is None else list(_drafted(draft, trace))))
    return found


def legend(found: Sequence[Step]) -> dict[str, str]:
    """The origins that occur in these steps with what they mean; the method's own words last, and unexplained."""
    said = {token.origin for step in found for token in (*step.tokens, *(step.drafts or ()))}
    ours = {word: meaning for word, meaning in MEANINGS.items() if word in said}
    return ours | dict.fromkeys(sorted(said - ours.keys()), "")


def _tokens(record: RequestRecord, trace: TokenTrace) -> Iterator[Token]:
    text = record.text + trace.tail
    answer = record.text_tokens
    places = pairwise(accumulate(trace.chars, initial=0))
    for at, (token, letter, (start, end)) in enumerate(zip(record.ids, trace.origins, places, strict=True)):
        yield Token(token, text[start:end], _word(trace, letter), at >= answer)


def _drafted(draft: Draft, trace: TokenTrace) -> Iterator[DraftToken]:
    parents = range(len(draft.ids)) if draft.parents is None else draft.parents
    path, only = set(draft.path), set(draft.draft_only)
    pieces = trace.pieces or {}
    for row, (token, parent, letter) in enumerate(zip(draft.ids, parents, draft.origins, strict=True), 1):
        yield DraftToken(row, parent, token, pieces.get(token, ""), _word(trace, letter), row in path, row in only)


def _word(trace: TokenTrace, letter: str) -> str:
    return trace.words[LETTERS.index(letter)]


def _contradiction(record: RequestRecord, trace: TokenTrace) -> str:
    """What does not go together in a record; empty where all does."""
    letters = set(LETTERS[: len(trace.words)])
    drafts = trace.drafts
    checks = {
        "its tokens": len(record.ids) == len(trace.origins) == len(trace.chars) == 1 + sum(record.accepts),
        "its forwards": len(record.accepts) == len(trace.rows) == record.forwards,
        "its text": sum(trace.chars) == len(record.text + trace.tail) and min(trace.chars, default=0) >= 0,
        "its origins": letters >= set(trace.origins).union(*(draft.origins for draft in drafts or ())),
        "its drafts": drafts is None
        or (
            [len(draft.ids) + 1 for draft in drafts] == trace.rows
            and all(len(draft.origins) == len(draft.ids) for draft in drafts)
            and all(draft.parents is None or len(draft.parents) == len(draft.ids) for draft in drafts)
        ),
    }
    return ", ".join(f"{what} are not as many as counted" for what, right in checks.items() if not right)
