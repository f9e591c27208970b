"""Installed: what of the other engines of a plan is not here, known before a model is loaded. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specbench.backends.rows import Row
from specbench.common.errors import EngineFault


def missing(rows: Sequence[Row]) -> Iterator[EngineFault]:
    """What of the rows of a plan is not installed, each as the sentence that says so; nothing is started."""
    for row in rows:
        if row.url is None:
            try:
                row.backend.version(row.options)
            except EngineFault as fault:
                yield EngineFault(f"{row.label}: {fault}")
