"""Buckets: the sizes that steps are padded to. No torch."""

from __future__ import annotations

#: Row counts that steps are padded to where they are captured, one graph each; which of them are used is measured.
#: Trees of more rows than the largest are stepped eagerly: their products, and no launches, are what takes time.
ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
#: Numbers of sequences that a method's own work is captured for.
SLOT_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
#: Cells that the check of a model at load time needs, its tree padded to a bucket.
PROBE_CELLS = 32


def row_bucket(rows: int) -> int:
    """The row count that ``rows`` rows are padded to, before any measurement; above the largest its next multiple."""
    largest = ROW_BUCKETS[-1]
    return next((bucket for bucket in ROW_BUCKETS if bucket >= rows), -(-rows // largest) * largest)


def scratch_cells(max_rows: int) -> int:
    """Cells that an engine keeps after its capacity, for trees of up to ``max_rows`` rows.

    A last tree starts at the capacity, and one row may be padded to a larger bucket; the last cell is where oracles
    store padding.
    """
    return max(row_bucket(max(2, max_rows)), PROBE_CELLS) + 1
