"""Sweeps: a grid of settings measured beside each other on the same prompts."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.sweeps.driver import Sweep as Sweep
    from specbench.sweeps.driver import drive as drive
    from specbench.sweeps.table import ReadSweep as ReadSweep
    from specbench.sweeps.table import read_sweep as read_sweep
    from specbench.sweeps.worker import Worker as Worker
else:
    __getattr__, __dir__ = door(__name__)
