"""Quantiles of pooled values, such as the times that users wait, with bootstrap intervals over prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specbench.analysis.speedup import BOOTSTRAP_SEED
from specbench.analysis.stats.interval import Floats, affordable, minimum_clusters, resamples
from specbench.results import Estimate, Percentiles, RequestRecord, WaitingTimes

#: Share below -> name of the field.
LEVELS = {0.5: "p50", 0.9: "p90", 0.95: "p95", 0.99: "p99"}
_DRAWS, _CELLS = 2_000, 1 << 18
_LEVEL = 0.95
_EXACT = 1e-12  # relative error of a share of whole numbers


def waiting_times(records: Sequence[RequestRecord]) -> WaitingTimes:
    """Percentiles of TTFT, time per output token, inter-token latency and latency of one method."""
    return WaitingTimes(
        ttft_s=percentiles([(r.sample, [r.ttft_s]) for r in records]),
        tpot_s=percentiles([(r.sample, [] if r.tpot_s is None else [r.tpot_s]) for r in records]),
        itl_s=percentiles([(r.sample, r.arrivals_s) for r in records]),
        latency_s=percentiles([(r.sample, [r.latency_s]) for r in records]),
    )


def percentiles(samples: Sequence[tuple[str, Sequence[float]]]) -> Percentiles | None:
    """Percentiles of all values together, as the median is defined: the mean of two values where both divide them so.

    Values of one prompt depend on each other, so the percentile bootstrap resamples prompts with all their values.

    Args:
        samples: prompt id and values; several entries of one prompt count as one prompt.
    """
    values = np.array([value for _, some in samples for value in some], dtype=np.float64)
    if not values.size:
        return None
    prompts = [prompt for prompt, some in samples for _ in some]
    order = np.argsort(values, kind="stable")
    names, member = np.unique(np.asarray(prompts), return_inverse=True)
    shown = [share for share in LEVELS if share <= 0.5 or values.size * (1 - share) >= 1 - 1e-9]
    found = _quantiles(np.ones((1, values.size), dtype=np.int64), values[order], shown)[0]
    ends = _ends(values[order], member[order], len(names), shown)
    return Percentiles(
        count=values.size,
        **{
            LEVELS[share]: Estimate(value=float(value), low=low, high=high)
            for share, value, (low, high) in zip(shown, found, ends, strict=True)
        },
    )


def _ends(
    values: Floats, member: np.ndarray, prompts: int, shown: Sequence[float]
) -> list[tuple[float | None, float | None]]:
    """Ends of the interval of each share; None with too few prompts. ``member``: the prompt of each sorted value."""
    if prompts < minimum_clusters(_LEVEL):
        return [(None, None)] * len(shown)
    draws = min(_DRAWS, affordable(_DRAWS, prompts))
    rows = max(1, _CELLS // values.size)
    found = np.empty((draws, len(shown)))
    for block, picked in resamples(prompts, draws, BOOTSTRAP_SEED):
        for start in range(0, len(picked), rows):
            some = picked[start : start + rows]
            counts = np.stack([np.bincount(each, minlength=prompts) for each in some])
            at = slice(block.start + start, block.start + start + len(some))
            found[at] = _quantiles(counts[:, member], values, shown)
    low, high = np.quantile(found, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], axis=0)
    return [(float(one), float(other)) for one, other in zip(low, high, strict=True)]


def _quantiles(weights: np.ndarray, values: Floats, shares: Sequence[float]) -> Floats:
    """[n, shares] quantiles of sorted ``values`` [k] with each row of whole ``weights`` [n, k]."""
    reached, row = weights.cumsum(axis=1), np.arange(len(weights))[:, None]
    wanted = reached[:, -1:] * np.asarray(shares)
    # One sorted array of all rows, each above the last, so that one search serves all.
    above, begin = row * (reached.max() + 1), row * len(values)
    ordered = (reached + above).ravel()
    first = np.searchsorted(ordered, np.ceil(wanted * (1 - _EXACT)).astype(np.int64) + above) - begin
    last = np.searchsorted(ordered, np.floor(wanted * (1 + _EXACT)).astype(np.int64) + above, "right") - begin
    found: Floats = (values[first] + values[np.minimum(last, len(values) - 1)]) / 2
    return found
