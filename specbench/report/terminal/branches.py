"""Branch calibration in words: whether a drafter's scores match the target's."""

from __future__ import annotations

from collections.abc import Iterator

from specbench.results.branches import BROKEN, KEPT
from specbench.results.summary_schema import RunSummary


def calibration(summary: RunSummary) -> Iterator[str]:
    """A sentence for each row whose drafts have scores."""
    for row in summary.rows:
        if row.branches and not row.again:
            found = row.branches
            gap = f"{abs(found.gap_median):.1f} nats {'more' if found.gap_median >= 0 else 'less'} likely"
            yield (
                f"{row.method} scores its best branch ({found.tokens:.1f} tokens) {gap} "
                f"than the target does (median of {found.branches} trees); the gap is under {KEPT:g} nats in "
                f"{found.kept_share:.0%} and {BROKEN:g} or more in {found.broken_share:.0%} of them."
            )
