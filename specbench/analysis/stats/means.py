"""Difference of two models' means over the same documents, with a paired interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specbench.analysis.stats.interval import Floats, Interval, affordable, minimum_clusters, resamples


@dataclass(frozen=True)
class MeanDifference:
    """Difference of two means over the same documents (``clusters`` of them): Σ (mine − other) / Σ weight."""

    value: float
    interval: Interval | None
    clusters: int
    draws: int
    seed: int


def paired_mean(
    mine: Sequence[float],
    other: Sequence[float],
    *,
    seed: int,
    weights: Sequence[float] | None = None,
    draws: int = 10_000,
    level: float = 0.95,
) -> MeanDifference:
    """Difference of two weighted means over the same documents, with a paired bootstrap-t interval about the value.

    Args:
        mine, other: [n] values of each document, in the same order; with weights, sums over the document.
        weights: [n] size of each document, such as bytes; default is 1 each.

    Source: Hall, On symmetric bootstrap confidence intervals, JRSS B 50 (1988).
    """
    columns = np.array([mine, other, np.ones(len(mine)) if weights is None else weights], dtype=np.float64)
    if not columns.size or not (columns[2] > 0).all():
        raise ValueError("no documents to compare, or one without weight")
    differences, over = columns[0] - columns[1], columns[2]
    value, count = float(differences.sum() / over.sum()), differences.size
    interval = None
    if count >= minimum_clusters(level):
        draws = affordable(draws, count)
        interval = _studentised(differences, over, value, draws, seed, level)
    return MeanDifference(value, interval, count, draws, seed)


def _spread(differences: Floats, weights: Floats) -> Floats:
    """Squared standard error of Σ difference / Σ weight, of [..., n]."""
    total, count = weights.sum(axis=-1), differences.shape[-1]
    value = differences.sum(axis=-1) / total
    left = differences - value[..., None] * weights
    found: Floats = np.square(left).sum(axis=-1) * (count / (count - 1)) / np.square(total)
    return found


def _studentised(differences: Floats, weights: Floats, value: float, draws: int, seed: int, level: float) -> Interval:
    spread, count = float(_spread(differences, weights)), differences.size
    if spread == 0.0:
        return Interval(value, value, level)
    distances = np.empty(draws)
    for block, picked in resamples(count, draws, seed):
        some, over = differences[picked], weights[picked]
        shift = some.sum(axis=1) / over.sum(axis=1) - value
        # 1/n² of the sample's own spread keeps the quotient finite if a resample has hardly any spread.
        its = _spread(some, over)
        distances[block] = np.abs(shift) / np.sqrt(its + (spread - its) / count**2)
    half = float(np.quantile(distances, level)) * spread**0.5
    return Interval(value - half, value + half, level)
