"""Bandwidth line: what memory gave during a run, and how much of it each method took, in words."""

from __future__ import annotations

from specbench.results.summary_schema import BandwidthFigures, RunSummary

_NAMED = 3  # methods beside the first that are told one by one


def bandwidth_line(summary: RunSummary) -> str:
    """The line, as "memory 22.1 GB/s (20.3 to 23.0, 2 threads); ar reads 0.81 of it, pld 0.66"; empty of runs without.

    Where memory could not be read it says why.
    """
    found = summary.bandwidth
    if found is None:
        return ""
    if found.bytes_per_s is None:
        return f"memory bandwidth was not read: {found.refused}" if found.refused else ""
    shares = [(row.method, row.bandwidth_share) for row in summary.rows if row.bandwidth_share is not None]
    told = [f"{method} {share:.2f}" for method, share in shares[1:]]
    if len(told) > _NAMED:
        others = [share for _, share in shares[1:]]
        told = [f"the others {min(others):.2f} to {max(others):.2f}"]
    parts = [f"memory {_range(found)}"]
    if shares:
        method, share = shares[0]
        parts.append(", ".join([f"{method} reads {share:.2f} of it", *told]))
    return "; ".join(parts)


def _range(found: BandwidthFigures) -> str:
    threads = " or ".join(map(str, found.threads)) + (" thread" if found.threads == [1] else " threads")
    middle, low, high = (
        "–" if speed is None else f"{speed / 1e9:.1f}"
        for speed in (found.bytes_per_s, found.low_bytes_per_s, found.high_bytes_per_s)
    )
    within = [f"{low} to {high}"] if found.readings > 1 else []
    return f"{middle} GB/s ({', '.join([*within, *([threads] if found.threads else [])])})"
