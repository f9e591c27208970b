"""The tree-attention kernel against torch's SDPA with a dense mask."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu_check.records import Figure
from benchmarks.kernels.attention_vs_sdpa import measure


def kernel(rows: int) -> Iterator[Figure]:
    """At every cache length of the benchmark."""
    for found in measure(rows=rows):
        note = f"{1e3 * found['kernel_ms']:.1f} µs against {1e3 * found['sdpa_ms']:.1f} µs"
        name = f"tree attention over SDPA, {rows} rows, {found['context']} cells"
        yield Figure(name, found["sdpa_ms"] / found["kernel_ms"], "ratio", ">= 1", note)
