"""Measurements of this machine: its ceilings, the engine's step times, and the checks of ``specbench doctor``."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.profiling.device_check import check_device as check_device
    from specbench.profiling.doctor import Check as Check
    from specbench.profiling.doctor import doctor_checks as doctor_checks
    from specbench.profiling.doctor import model_checks as model_checks
    from specbench.profiling.machine_profile import measure_profile as measure_profile
    from specbench.profiling.quiet import OTHER_WORK as OTHER_WORK
    from specbench.profiling.quiet import quiet_checks as quiet_checks
    from specbench.profiling.routing import with_routing as with_routing
    from specbench.profiling.shape import shape_of as shape_of
else:
    __getattr__, __dir__ = door(__name__)
