"""Run a plan and leave a finished folder. The only clock is in this room."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.runner.config import config_of as config_of
    from specbench.runner.grades.likelihood import rows_at_once as rows_at_once
    from specbench.runner.grades.likelihood import token_log_likelihoods as token_log_likelihoods
    from specbench.runner.grades.rescoring import lacks_verdicts as lacks_verdicts
    from specbench.runner.grades.rescoring import rescore as rescore
    from specbench.runner.loading import load_model as load_model
    from specbench.runner.loading import load_models as load_models
    from specbench.runner.local_judge import judge_runs as judge_runs
    from specbench.runner.loop import Runner as Runner
    from specbench.runner.lossless_check import CheckedEngines as CheckedEngines
    from specbench.runner.lossless_check import check_lossless as check_lossless
    from specbench.runner.monitor import Monitor as Monitor
    from specbench.runner.monitor import ProgressSink as ProgressSink
    from specbench.runner.monitor import monitoring as monitoring
    from specbench.runner.order import Order as Order
    from specbench.runner.prompts import prepare as prepare
    from specbench.runner.record import Request as Request
    from specbench.runner.run_plans import run as run
    from specbench.runner.run_plans import run_plan as run_plan
    from specbench.runner.run_progress import notes_of as notes_of
    from specbench.runner.run_progress import printing_to as printing_to
    from specbench.runner.session import Session as Session
    from specbench.runner.session import session_of as session_of
    from specbench.runner.stop import StopRule as StopRule
else:
    __getattr__, __dir__ = door(__name__)
