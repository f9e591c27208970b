"""Dry run of a sweep: what its cells would take, with nothing loaded and nothing run. No torch."""

from __future__ import annotations

from typing import Any

from specbench.runner.dry_run import dry_run
from specbench.sweeps.plan import SweepPlan
from specbench.sweeps.running import expanded


def predict(plan: SweepPlan) -> dict[str, Any]:
    """Rows, memory and step time of each cell, see :func:`specbench.runner.dry_run.dry_run`; those too large included.

    Raises:
        SpecbenchError: as resolving a run; a grid that is none.
    """
    resolved, grid = expanded(plan, insist=plan.yes)
    methods = (grid.baseline, *(cell.method for cell in (*grid.cells, *grid.too_large)))
    return dry_run(resolved, methods, grid.concurrency, plan.profile)
