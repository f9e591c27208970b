"""Rated: what the target was asked about a run when all was decoded, its texts and the branches drafted. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specbench.results.branches import RatedBranch, read_branches
from specbench.results.likelihoods import Likelihood, read_likelihoods


@dataclass(frozen=True)
class Rated:
    """Rated: answers of the target, by request key; empty where it was not asked.

    Attributes:
        likelihoods: how likely the text is.
        branches: how likely the best branches of some of its trees are.
    """

    likelihoods: Mapping[str, Likelihood] = field(default_factory=dict)
    branches: Mapping[str, Sequence[RatedBranch]] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Rated:
        """What a run's folder has of it.

        Raises:
            UsageError: a file cannot be read, or a line is damaged; names the line and the field.
        """
        return cls(read_likelihoods(folder), read_branches(folder))
