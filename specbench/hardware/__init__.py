"""Facts about machines and GPUs: environment, limits, telemetry, roofline and stored profiles."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.hardware import environment as environment
    from specbench.hardware import gpus as gpus
    from specbench.hardware.bandwidth import BandwidthProbe as BandwidthProbe
    from specbench.hardware.environment import DISTRIBUTION as DISTRIBUTION
    from specbench.hardware.environment import installed_version as installed_version
    from specbench.hardware.environment import is_this_machine as is_this_machine
    from specbench.hardware.environment import kernel_driver as kernel_driver
    from specbench.hardware.environment import nvml_state as nvml_state
    from specbench.hardware.gpus import Gpu as Gpu
    from specbench.hardware.limits import cores_in_reach as cores_in_reach
    from specbench.hardware.limits import free_ram_bytes as free_ram_bytes
    from specbench.hardware.limits import ram_bytes as ram_bytes
    from specbench.hardware.limits import usable_cores as usable_cores
    from specbench.hardware.monitor import MachineSample as MachineSample
    from specbench.hardware.monitor import sample_delta as sample_delta
    from specbench.hardware.monitor import sample_machine as sample_machine
    from specbench.hardware.projection import Projection as Projection
    from specbench.hardware.projection import project as project
    from specbench.hardware.roofline import AttentionLayers as AttentionLayers
    from specbench.hardware.roofline import Ceilings as Ceilings
    from specbench.hardware.roofline import Experts as Experts
    from specbench.hardware.roofline import ModelShape as ModelShape
    from specbench.hardware.roofline import StepPoint as StepPoint
    from specbench.hardware.roofline import StepTimes as StepTimes
    from specbench.hardware.roofline import bound_s as bound_s
    from specbench.hardware.roofline import free_rows as free_rows
    from specbench.hardware.roofline import knee as knee
    from specbench.hardware.roofline import step_cost as step_cost
    from specbench.hardware.stored_profile import CONTEXTS as CONTEXTS
    from specbench.hardware.stored_profile import PROFILE as PROFILE
    from specbench.hardware.stored_profile import ROWS as ROWS
    from specbench.hardware.stored_profile import SECONDS as SECONDS
    from specbench.hardware.stored_profile import SLOTS as SLOTS
    from specbench.hardware.stored_profile import STEPS as STEPS
    from specbench.hardware.stored_profile import FreeRows as FreeRows
    from specbench.hardware.stored_profile import LeftOut as LeftOut
    from specbench.hardware.stored_profile import MeasuredCeilings as MeasuredCeilings
    from specbench.hardware.stored_profile import Profile as Profile
    from specbench.hardware.stored_profile import Settings as Settings
    from specbench.hardware.stored_profile import base_context as base_context
    from specbench.hardware.stored_profile import datasheet as datasheet
    from specbench.hardware.stored_profile import is_profile as is_profile
    from specbench.hardware.stored_profile import newest_profile as newest_profile
    from specbench.hardware.stored_profile import read_profile as read_profile
    from specbench.hardware.stored_profile import step_rows as step_rows
    from specbench.hardware.stored_profile import steps_csv as steps_csv
    from specbench.hardware.telemetry import GpuMeter as GpuMeter
    from specbench.hardware.telemetry import Nvml as Nvml
else:
    __getattr__, __dir__ = door(__name__)
