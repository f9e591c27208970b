"""Sizes that steps are padded to."""

from __future__ import annotations

#: Row counts that captured steps are padded to, one graph each; measurements decide which of them are used.
#: Larger trees are stepped eagerly: their time is spent in matrix products, not in launches.
ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
#: Numbers of sequences for which a method's own device work is captured.
SLOT_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
#: Cells that the load-time check of a model needs for its tree, padded to a bucket.
PROBE_CELLS = 32


def row_bucket(rows: int) -> int:
    """Round ``rows`` up to a bucket, or above the largest bucket to a multiple of it."""
    largest = ROW_BUCKETS[-1]
    return next((bucket for bucket in ROW_BUCKETS if bucket >= rows), -(-rows // largest) * largest)


def scratch_cells(max_rows: int) -> int:
    """Number of cells that an engine keeps after its capacity, for trees of up to ``max_rows`` rows.

    The last tree starts at the capacity, and a single row may be padded to a larger bucket; the last cell is where the
    reference operations store padding.
    """
    return max(row_bucket(max(2, max_rows)), PROBE_CELLS) + 1
