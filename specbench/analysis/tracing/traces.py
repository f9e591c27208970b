"""Read from a record how each token of a request was generated, after checking that the record is consistent.

Generations, trajectories and rounds are all based on this.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from specbench.common import UsageError
from specbench.decoding import FILLED
from specbench.results import LETTERS, Draft, RequestRecord, TokenTrace


def checked_trace(record: RequestRecord) -> TokenTrace:
    """The trace of a request; UsageError if there is none, or if it contradicts the record or itself."""
    trace = record.tokens
    if trace is None and ":" in record.method:  # rows of other engines
        raise UsageError(
            f"cannot show the steps of {record.request_id}: another engine decoded it; name a request of our engine"
        )
    if trace is None:
        raise UsageError(f"cannot show the steps of {record.request_id}: its record is too old; repeat its run")
    if fault := _contradiction(record, trace):
        raise UsageError(f"the trace of {record.request_id} is damaged: {fault}; run it again")
    return trace


def drafts_of(record: RequestRecord) -> Sequence[Draft]:
    """The draft that each target forward of a request verified, in order; UsageError without recorded drafts."""
    drafts = checked_trace(record).drafts
    if not record.target_forwards:
        raise UsageError(f"{record.request_id} has no forward after the prefill; choose a longer answer")
    if record.tokens and FILLED in record.tokens.words:
        raise UsageError(f"{record.method} fills masked blocks and drafts nothing; name a method that drafts")
    if drafts is None:
        raise UsageError(f"{record.request_id} has no recorded drafts; repeat its run with --trace")
    if not any(draft.ids for draft in drafts):
        raise UsageError(f"{record.method} drafted nothing for {record.request_id}; name a method that drafts")
    return drafts


def parents_of(draft: Draft) -> Sequence[int]:
    """Parent row of each row, shape [rows - 1]; 0 is the root."""
    return range(len(draft.ids)) if draft.parents is None else draft.parents


def origin_of(trace: TokenTrace, letter: str) -> str:
    """The origin that a letter encodes."""
    return trace.words[LETTERS.index(letter)]


def token_texts(record: RequestRecord, trace: TokenTrace) -> list[str]:
    """The text that each token of the answer adds; "" if the next token completes its character or it has no text."""
    text = record.text + trace.tail
    return [text[start:end] for start, end in pairwise(accumulate(trace.chars, initial=0))]


def roots(record: RequestRecord) -> list[int]:
    """Position in the answer, from 0, of each target forward's root, the last token emitted before it."""
    return list(accumulate(record.accepted_lengths, initial=record.first_tokens - 1))[: record.target_forwards]


def _contradiction(record: RequestRecord, trace: TokenTrace) -> str:
    """A contradiction in a record; empty if there is none."""
    letters = set(LETTERS[: len(trace.words)])
    drafts, lengths = trace.drafts, record.accepted_lengths
    checks = {
        "its tokens": len(record.output_ids)
        == len(trace.origins)
        == len(trace.chars)
        == record.first_tokens + sum(record.accepted_lengths),
        "its forwards": len(lengths) == len(trace.rows) == record.target_forwards,
        "its text": sum(trace.chars) == len(record.text + trace.tail) and min(trace.chars, default=0) >= 0,
        "its origins": letters >= set(trace.origins).union(*(draft.origins for draft in drafts or ())),
        "its drafts": drafts is None
        or (
            [len(draft.ids) + 1 for draft in drafts] == trace.rows
            and all(len(draft.origins) == len(draft.ids) for draft in drafts)
            and all(draft.parents is None or len(draft.parents) == len(draft.ids) for draft in drafts)
            and all(draft.scores is None or len(draft.scores) == len(draft.ids) for draft in drafts)
        ),
    }
    if wrong := [what for what, right in checks.items() if not right]:
        return ", ".join(f"{what} do not match its counts" for what in wrong)
    trees = all(map(_is_tree, drafts or (), lengths))
    return "" if trees else "its drafts are not trees with an accepted path"


def _is_tree(draft: Draft, kept: int) -> bool:
    """Whether parents precede their children, and the accepted rows are one path that matches the kept tokens."""
    parents = [-1, *parents_of(draft)]
    rows = range(len(parents))
    return (
        all(0 <= parent < row for row, parent in enumerate(parents[1:], 1))
        and all(row in rows for row in (*draft.draft_only, *draft.path))
        and [parents[row] for row in draft.path] == [0, *draft.path][: len(draft.path)]
        and 0 <= kept <= 1 + len(draft.path)
    )
