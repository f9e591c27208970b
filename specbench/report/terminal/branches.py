"""Branch faithfulness in words: whether a drafter's scores promise what the target says."""

from __future__ import annotations

from collections.abc import Iterator

from specbench.results.branches import BROKEN, KEPT
from specbench.results.summary_schema import RunSummary


def faithful(summary: RunSummary) -> Iterator[str]:
    """A sentence for each row whose drafts have scores."""
    for row in summary.rows:
        if row.branches and not row.again:
            found = row.branches
            much = "more" if found.gap_median >= 0 else "less"
            yield (
                f"{row.method}: its best branch, {found.tokens:.1f} tokens long, promises {abs(found.gap_median):.1f} "
                f"nats {much} than the target says in the median of {found.branches} trees; under {KEPT:g} nats in "
                f"{found.kept_share:.0%} of them, {BROKEN:g} or more in {found.broken_share:.0%}."
            )
