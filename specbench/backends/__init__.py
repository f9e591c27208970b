"""Run other engines as rows of a run, measured with the same clock, stop rule and definitions as our own."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.backends.catalog import engine_mode as engine_mode
    from specbench.backends.catalog import engines as engines
    from specbench.backends.catalog import is_row as is_row
    from specbench.backends.idle_guard import IdleGuard as IdleGuard
    from specbench.backends.openvino import export_openvino as export_openvino
    from specbench.backends.protocol import Arrival as Arrival
    from specbench.backends.protocol import Backend as Backend
    from specbench.backends.protocol import EngineCounters as EngineCounters
    from specbench.backends.protocol import Mode as Mode
    from specbench.backends.protocol import Question as Question
    from specbench.backends.protocol import Served as Served
    from specbench.backends.protocol import Several as Several
    from specbench.backends.rows import Row as Row
    from specbench.backends.rows import make_row as make_row
else:
    __getattr__, __dir__ = door(__name__)
