"""Sweeps: a grid of settings measured beside each other on the same prompts."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.sweeps.plan import SweepPlan as SweepPlan
    from specbench.sweeps.plan import TunePlan as TunePlan
    from specbench.sweeps.running import run_sweep as run_sweep
    from specbench.sweeps.running import run_tuning as run_tuning
    from specbench.sweeps.running import sweep as sweep
    from specbench.sweeps.table import ReadSweep as ReadSweep
    from specbench.sweeps.table import Sweep as Sweep
    from specbench.sweeps.table import read_sweep as read_sweep
else:
    __getattr__, __dir__ = door(__name__)
