"""Confidence intervals, and resampling for those without a formula."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Clusters = Sequence[str] | Sequence[int]

# Indices per block of resamples, which limits memory to tens of megabytes. The random stream does not depend on it.
_CELLS_PER_BLOCK = 1 << 20
# With many prompts fewer resamples suffice, because the quantile is close to the normal one: 10,000 for up to 3,000
# prompts, 1,000 for more than 30,000.
_CELLS, _FEWEST_DRAWS = 1 << 25, 1_000


@dataclass(frozen=True)
class Interval:
    """A two-sided confidence interval. ``level`` is its nominal coverage, 0.95 for 95%."""

    low: float
    high: float
    level: float


def minimum_clusters(level: float = 0.95) -> int:
    """Fewest prompts for an interval of this level: 6 for 95%.

    The range of n independent values contains the median of their population with probability 1 − 2^(1−n) only.
    """
    return 1 + math.ceil(-math.log2(1.0 - level))


def cluster_sums(columns: Floats, clusters: Clusters | None) -> Floats:
    """Sum [m, n] rows to [m, k] prompts, sorted by prompt id, so that the order of the rows does not matter."""
    if clusters is None:
        return columns
    _, member = np.unique(np.asarray(clusters), return_inverse=True)
    if member.shape != columns.shape[1:]:
        raise ValueError(f"{member.size} cluster ids for {columns.shape[1]} rows")
    return np.stack([np.bincount(member, weights=column) for column in columns])


def affordable(draws: int, count: int) -> int:
    """Number of resamples of ``count`` prompts to make if ``draws`` are requested."""
    return min(draws, max(_FEWEST_DRAWS, _CELLS // count))


def resamples(count: int, draws: int, seed: int) -> Iterator[tuple[slice, npt.NDArray[np.int64]]]:
    """Yield ``draws`` resamples with replacement in blocks: the slice of resamples, and [block, count] indices.

    Uses numpy's PCG64: equal arguments give equal indices.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    block = max(1, _CELLS_PER_BLOCK // count)
    for start in range(0, draws, block):
        stop = min(start + block, draws)
        yield slice(start, stop), generator.integers(count, size=(stop - start, count))
