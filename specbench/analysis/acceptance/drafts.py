"""Compute acceptance from records: accepted length, draft acceptance rate, acceptance per draft position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from specbench.analysis.stats.ratio import paired_ratio
from specbench.results import Acceptance, Estimate, RequestRecord

_SEED, _DRAWS = 0, 2_000  # a row of 1,000 prompts takes a tenth of a second


def accepted_drafts(record: RequestRecord) -> Counter[int] | None:
    """Number of drafts by accepted draft tokens; None if unknown.

    Records without ``acceptance_histogram`` are older ones. In these every row of a tree counts as a draft token, also
    one that only generated drafts.
    """
    if record.acceptance_histogram is not None:
        return Counter({kept: drafts for kept, drafts in enumerate(record.acceptance_histogram) if drafts})
    if record.tree_rows == record.target_forwards and record.forwards_distinct:
        return Counter()
    if record.tokens is None:
        return None
    kept = [*record.accepted_lengths]
    if kept:
        kept[-1] += record.overshoot_tokens
    return Counter(tokens - 1 for tokens, rows in zip(kept, record.tokens.rows, strict=True) if rows > 1)


def acceptance(records: Sequence[RequestRecord]) -> Acceptance | None:
    """Acceptance of a row; None without drafts, and unless every request has counted them."""
    counted = [(record, accepted_drafts(record)) for record in records]
    histogram: Counter[int] = Counter()
    for _, found in counted:
        if found is None:
            return None
        histogram += found
    drafts = histogram.total()
    if not drafts:
        return None
    accepted, most = _tokens(histogram), max(histogram)
    tokens = draft_tokens(records)
    steps = [(float(found.total()), float(found.total() + _tokens(found))) for _, found in counted if found]
    ones = [1.0] * len(steps)
    ratio = paired_ratio(
        (ones, ones), ([step for step, _ in steps], [token for _, token in steps]), seed=_SEED, draws=_DRAWS,
        clusters=[record.sample for record, found in counted if found],
    )  # fmt: skip
    ends = {"low": max(1.0, ratio.interval.low), "high": ratio.interval.high} if ratio.interval else {}
    return Acceptance(
        length=Estimate(value=1 + accepted / drafts, **ends),
        length_without_bonus=accepted / drafts,
        rate=accepted / tokens if tokens else None,
        drafts=drafts,
        draft_tokens=tokens,
        accepted_tokens=accepted,
        positions={at: sum(n for kept, n in histogram.items() if kept >= at) / drafts for at in range(1, most + 1)},
        histogram={kept: histogram[kept] for kept in range(most + 1)},
    )


def _tokens(histogram: Counter[int]) -> int:
    return sum(kept * drafts for kept, drafts in histogram.items())


def draft_tokens(records: Sequence[RequestRecord]) -> int | None:
    """Draft tokens of all requests; None if one of them did not count them."""
    drafted = [record.draft_tokens for record in records if record.draft_tokens is not None]
    return sum(drafted) if len(drafted) == len(records) else None
