"""Hardware: facts about machines, boards, environment, telemetry, roofline and stored profiles."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.hardware.profile import Profile as Profile
    from specbench.hardware.profile import is_profile as is_profile
    from specbench.hardware.profile import read_profile as read_profile
    from specbench.hardware.projection import Projection as Projection
    from specbench.hardware.projection import project as project
    from specbench.hardware.roofline import ModelShape as ModelShape
    from specbench.hardware.telemetry import GpuMeter as GpuMeter
    from specbench.hardware.telemetry import Nvml as Nvml
else:
    __getattr__, __dir__ = door(__name__)
