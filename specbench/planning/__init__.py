"""Everything decided before a model is loaded: options, methods, tasks, memory checks and dry runs."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.planning.dry_runs import PROMPT_TOKENS as PROMPT_TOKENS
    from specbench.planning.dry_runs import dry_run as dry_run
    from specbench.planning.grammar import grammar_source as grammar_source
    from specbench.planning.load import Arrivals as Arrivals
    from specbench.planning.memory_check import MemoryBudget as MemoryBudget
    from specbench.planning.memory_check import how_to_shrink as how_to_shrink
    from specbench.planning.methods import Settings as Settings
    from specbench.planning.methods import assign_labels as assign_labels
    from specbench.planning.methods import make_method as make_method
    from specbench.planning.methods import parse_settings as parse_settings
    from specbench.planning.methods import plan_methods as plan_methods
    from specbench.planning.methods import settings_of_all as settings_of_all
    from specbench.planning.plan import DEFAULT_TASK as DEFAULT_TASK
    from specbench.planning.plan import PROFILES as PROFILES
    from specbench.planning.plan import RESULTS as RESULTS
    from specbench.planning.plan import Concurrent as Concurrent
    from specbench.planning.plan import Decoding as Decoding
    from specbench.planning.plan import Drawing as Drawing
    from specbench.planning.plan import Loading as Loading
    from specbench.planning.plan import Noting as Noting
    from specbench.planning.plan import Plan as Plan
    from specbench.planning.plan import Stepping as Stepping
    from specbench.planning.plan import Waiting as Waiting
    from specbench.planning.plan import Wordy as Wordy
    from specbench.planning.plan import parse_contexts as parse_contexts
    from specbench.planning.plan import split_names as split_names
    from specbench.planning.preflight import check_ready as check_ready
    from specbench.planning.preflight import missing_engines as missing_engines
    from specbench.planning.preflight import projected_gpu as projected_gpu
    from specbench.planning.presets import load_presets as load_presets
    from specbench.planning.resolving import Resolved as Resolved
    from specbench.planning.resolving import resolve as resolve
    from specbench.planning.simulation import Acceptance as Acceptance
    from specbench.planning.tasks import TaskPlan as TaskPlan
else:
    __getattr__, __dir__ = door(__name__)
