"""Branch calibration: ``branches.jsonl`` of a run, how well a drafter's scores of its branches match the target.

The gap of a branch is the log-probability (base e) that the drafter gave its tokens less that of the target at
temperature 1. It is 0 for a calibrated drafter, positive for one that is too sure; 5 nats are a factor of 148.

JetSpec's "branch faithfulness" (project page, ablations) is another quantity: the drafter's log-probability of its best
branch less the *drafter's* of the target's continuation. ``specbench train jetspec`` puts that on the head's card.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median

from pydantic import Field

from specbench.common import validate
from specbench.results.request_log import read_requests
from specbench.results.request_schema import RequestRecord
from specbench.results.schema import Count, Figure, Record
from specbench.results.summary_schema import BranchFigures

BRANCHES = "branches.jsonl"

#: Nats of the gap below which a score counts as kept, and from which on as broken; JetSpec's limits for its quantity.
KEPT, BROKEN = 5.0, 80.0

_TODO = "delete it to do without its figures"


class RatedBranch(Record):
    """The best branch of one tree."""

    tokens: Count = Field(description="of the branch, the root not counted")
    promised: Figure = Field(description="log-probability that its drafter gave it, in nats")
    said: Figure = Field(description="log-probability under the target, in nats")

    @property
    def gap(self) -> float:
        """Nats by which the promise was too good."""
        return self.promised - self.said


class RatedRequest(Record):
    """A line: the branches of one request that were asked for."""

    request: str = Field(description="its key")
    branches: list[RatedBranch]


def read_branches(folder: Path) -> dict[str, Sequence[RatedBranch]]:
    """The rated branches of a run by request key, the last line of each; empty where the target was not asked."""
    found: dict[str, Sequence[RatedBranch]] = {}
    for where, content in read_requests(folder / BRANCHES, _TODO):
        line = validate(RatedRequest, content, where, _TODO)
        found[line.request] = line.branches
    return found


def branch_calibration(
    records: Iterable[RequestRecord], known: Mapping[str, Sequence[RatedBranch]]
) -> BranchFigures | None:
    """What the branches of some requests come to; None without any."""
    branches = [branch for record in records for branch in known.get(record.request_id, ())]
    if not branches:
        return None
    gaps = [branch.gap for branch in branches]
    return BranchFigures(
        branches=len(branches),
        tokens=mean(branch.tokens for branch in branches),
        gap_median=median(gaps),
        gap_mean=mean(gaps),
        kept_share=sum(gap < KEPT for gap in gaps) / len(gaps),
        broken_share=sum(gap >= BROKEN for gap in gaps) / len(gaps),
    )
