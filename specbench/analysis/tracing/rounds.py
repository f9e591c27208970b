"""The tree that one target forward verified, and which of its nodes were accepted.

The *top pick not accepted* at a node of the accepted path is the drafter's best-scored child there, if the forward
accepted a different token or none. Draft-only rows and rows without a score do not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from specbench.analysis.tracing.traces import checked_trace, drafts_of, origin_of, parents_of, roots, token_texts
from specbench.common import UsageError
from specbench.results import Draft, RequestRecord


@dataclass(frozen=True)
class Row:
    """A row of the tree.

    Attributes:
        text: text of the id alone; for the root, the text that it adds to the answer.
        accepted: on the accepted path.
        draft_only: cannot be accepted; computed only to generate drafts.
        missed: the top pick not accepted of its parent.
        score: natural log-probability after its parent under the drafter; None without a score.
        path_score: sum of the scores from below the root to this row; None if one is missing.
    """

    row: int
    parent: int
    depth: int
    id: int
    text: str
    origin: str
    accepted: bool
    draft_only: bool
    missed: bool
    score: float | None
    path_score: float | None


@dataclass(frozen=True)
class Round:
    """One target forward; ``root`` is its root's position in the answer, from 0.

    ``bonus`` is the target's own token after the accepted path; None if the answer ended before it.
    """

    request_id: str
    method: str
    prompt_id: str
    number: int
    forwards: int
    root: int
    emitted: int
    bonus_id: int | None
    bonus: str | None
    rows: Sequence[Row]

    @cached_property
    def children(self) -> Mapping[int, Sequence[Row]]:
        """The children of each row: the accepted one first, then by path score, then in draft order."""
        found: dict[int, list[Row]] = defaultdict(list)
        for row in self.rows[1:]:
            found[row.parent].append(row)
        return {parent: sorted(under, key=_first) for parent, under in found.items()}

    def best_rows(self, most: int) -> set[int]:
        """About ``most`` important rows: the accepted path, the top picks not accepted, then the best-scored paths.

        Rows without scores are sorted by depth; draft-only rows come last. The ancestors of a chosen row are chosen,
        too.
        """
        rest = sorted(self.rows[1:], key=lambda row: (not row.missed, *_first(row), row.depth, row.row))
        found = {row.row for row in self.rows if row.accepted}
        for row in rest:
            if len(found) >= most:
                break
            at = row.row
            while at not in found:
                found.add(at)
                at = self.rows[at].parent
        return found

    @property
    def accepted(self) -> int:
        """Number of drafts on the accepted path."""
        return sum(row.accepted for row in self.rows[1:])

    @property
    def rejected(self) -> int:
        """Number of rows that could be accepted but were not."""
        return sum(not row.accepted and not row.draft_only for row in self.rows)


def _first(row: Row) -> tuple[bool, bool, bool, float]:
    score = row.path_score
    return not row.accepted, row.draft_only, score is None, -(score or 0.0)


def round_of(record: RequestRecord, number: int) -> Round:
    """The tree of a traced request's ``number``-th target forward, from 1; UsageError if there is none."""
    drafts = drafts_of(record)
    if not 1 <= number <= len(drafts):
        raise UsageError(f"{record.request_id} has no forward {number}; name one of 1 to {len(drafts)}")
    draft, root, trace = drafts[number - 1], roots(record)[number - 1], checked_trace(record)
    texts, kept = token_texts(record, trace), record.accepted_lengths[number - 1]
    end = root + 1 + len(draft.path)
    whole = kept == 1 + len(draft.path)
    origin = origin_of(trace, trace.origins[root])
    rows = [Row(0, -1, 0, record.output_ids[root], texts[root], origin, True, False, False, None, 0.0)]
    accepted, only, missed = {0, *draft.path}, set(draft.draft_only), _missed(draft)
    scores = draft.scores or [None] * len(draft.ids)
    pieces = trace.pieces or {}
    for row, (token, parent, score) in enumerate(zip(draft.ids, parents_of(draft), scores, strict=True), 1):
        above = rows[parent]
        rows.append(Row(
            row, parent, above.depth + 1, token, pieces.get(token, ""), origin_of(trace, draft.origins[row - 1]),
            row in accepted, row in only, row in missed, score,
            None if score is None or above.path_score is None else above.path_score + score,
        ))  # fmt: skip
    return Round(
        record.request_id, record.method, record.prompt_id, number, len(drafts), root, kept,
        record.output_ids[end] if whole else None, texts[end] if whole else None, rows,
    )  # fmt: skip


def _missed(draft: Draft) -> set[int]:
    """The rows that are top picks not accepted."""
    if draft.scores is None:
        return set()
    only, taken = set(draft.draft_only), {0, *draft.path}
    tokens = {(parent, draft.ids[row - 1]) for parent, row in pairwise((0, *draft.path))}
    best: dict[int, tuple[float, int]] = {}
    for row, (parent, score) in enumerate(zip(parents_of(draft), draft.scores, strict=True), 1):
        if (
            parent in taken
            and row not in only
            and score is not None
            and score > best.get(parent, (-float("inf"), 0))[0]
        ):
            best[parent] = (score, row)
    return {row for parent, (_, row) in best.items() if (parent, draft.ids[row - 1]) not in tokens}


#: The rule of :func:`telling_round`, in a sentence.
TELLING = (
    "The forward with most rejected rows among those that accepted at least two drafts, otherwise the forward that "
    "accepted most."
)

_ENOUGH = 2  # accepted drafts that make a path worth showing


def telling_round(record: RequestRecord) -> int | None:
    """The most informative forward of a request, from 1; None if the method does not draft trees.

    Among forwards with a branching tree: the one with most rejected rows among those that accepted at least two drafts,
    or, if there are none, among those that accepted most. The first one if several are equal.
    """
    seen = {number: draft for number, draft in enumerate(drafts_of(record), 1) if _branches(draft)}
    return max(seen, key=lambda number: _telling(seen[number]), default=None)


def _telling(draft: Draft) -> tuple[int, int]:
    rejected = len(set(range(1, len(draft.ids) + 1)) - set(draft.draft_only) - set(draft.path))
    return min(len(draft.path), _ENOUGH), rejected


def _branches(draft: Draft) -> bool:
    """Whether a row has several children that could be accepted."""
    only = set(draft.draft_only)
    parents = [parent for row, parent in enumerate(parents_of(draft), 1) if row not in only]
    return len(parents) > len(set(parents))
