"""How well a drafter's scores match the target's probabilities (calibration): ``branches.jsonl`` of a run.

The gap of a branch is the drafter's log-probability of its tokens minus the target's, both in nats at temperature 1. It
is 0 for a calibrated drafter and positive for an overconfident one; 5 nats are a factor of 148.

JetSpec's "branch faithfulness" (project page, ablations) is another quantity: the drafter's log-probability of its best
branch minus the *drafter's* log-probability of the target's continuation. ``specbench train jetspec`` writes it to the
model card of the head.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median

from pydantic import AliasChoices, Field

from specbench.common import validate
from specbench.results.request_log import read_requests
from specbench.results.request_schema import RequestRecord
from specbench.results.schema import Count, Figure, Record
from specbench.results.summary_schema import BranchFigures

BRANCHES = "branches.jsonl"

#: A gap below the first limit counts as kept, one from the second limit on as broken (nats). JetSpec uses the same
#: limits for its quantity.
KEPT, BROKEN = 5.0, 80.0

_TODO = "delete it to go on without its figures"


class RatedBranch(Record):
    """The best branch of one tree, with its log-probability under the drafter and under the target."""

    tokens: Count = Field(description="draft tokens of the branch, without the root")
    promised: Figure = Field(description="log-probability of the branch under the drafter, in nats")
    target: Figure = Field(
        validation_alias=AliasChoices("target", "said"),  # older files call it "said"
        description="log-probability of the branch under the target, in nats",
    )

    @property
    def gap(self) -> float:
        """Drafter's log-probability minus the target's, in nats: positive for an overconfident drafter."""
        return self.promised - self.target


class RatedRequest(Record):
    """A line of ``branches.jsonl``: the branches of one request that the target scored."""

    request: str = Field(description="key of the request in requests.jsonl")
    branches: list[RatedBranch]


def read_branches(folder: Path) -> dict[str, Sequence[RatedBranch]]:
    """Return the scored branches by request key (the last line of each); empty if the target scored none."""
    found: dict[str, Sequence[RatedBranch]] = {}
    for where, content in read_requests(folder / BRANCHES, _TODO):
        line = validate(RatedRequest, content, where, _TODO)
        found[line.request] = line.branches
    return found


def branch_calibration(
    records: Iterable[RequestRecord], known: Mapping[str, Sequence[RatedBranch]]
) -> BranchFigures | None:
    """Summarise the branches of some requests; None if they have no scored branches."""
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
