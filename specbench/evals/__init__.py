"""Evals: a task's prompts in, verdicts out; the judge; the sandbox."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.evals.launch import score_in_child as score_in_child
    from specbench.evals.sandbox.sandbox import Program as Program
    from specbench.evals.sandbox.sandbox import Sandbox as Sandbox
    from specbench.evals.task import Question as Question
    from specbench.evals.task import Task as Task
    from specbench.evals.task import Unscored as Unscored
    from specbench.evals.task import Verdict as Verdict
else:
    __getattr__, __dir__ = door(__name__)
