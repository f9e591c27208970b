"""Measure a grid of settings on the same prompts, next to AR."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.sweeps.campaigns import campaign_blocks as campaign_blocks
    from specbench.sweeps.campaigns import campaign_plans as campaign_plans
    from specbench.sweeps.campaigns import is_several as is_several
    from specbench.sweeps.campaigns import parse_campaign as parse_campaign
    from specbench.sweeps.campaigns import parse_written as parse_written
    from specbench.sweeps.campaigns import run_campaign as run_campaign
    from specbench.sweeps.expected_cost import forecast as forecast
    from specbench.sweeps.running import predict as predict
    from specbench.sweeps.running import run_sweep as run_sweep
    from specbench.sweeps.running import run_tuning as run_tuning
    from specbench.sweeps.running import sweep as sweep
    from specbench.sweeps.sweep_plan import CampaignPlan as CampaignPlan
    from specbench.sweeps.sweep_plan import TrainedSweepPlan as TrainedSweepPlan
    from specbench.sweeps.sweep_plan import TunePlan as TunePlan
    from specbench.sweeps.table import ReadSweep as ReadSweep
    from specbench.sweeps.table import Sweep as Sweep
    from specbench.sweeps.table import acceptance_curves as acceptance_curves
    from specbench.sweeps.table import read_sweep as read_sweep
    from specbench.sweeps.trained import ReadTrainings as ReadTrainings
    from specbench.sweeps.trained import hours_of as hours_of
    from specbench.sweeps.trained import is_trainings as is_trainings
    from specbench.sweeps.trained import read_trainings as read_trainings
    from specbench.sweeps.trainings import Due as Due
    from specbench.sweeps.trainings import sweep_trainings as sweep_trainings
else:
    __getattr__, __dir__ = door(__name__)
