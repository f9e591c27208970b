"""Run a plan to its finished folders, one per task; used by the command and by ``specbench.run``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specbench.analysis import Run
from specbench.common import UsageError, keywords, step_timeout
from specbench.planning import Plan, check_ready, missing_engines, projected_gpu, resolve
from specbench.profiling import check_device
from specbench.results import RunFolder
from specbench.runner.run_progress import RunProgress, notes_of, printing_to

if TYPE_CHECKING:
    from specbench.hardware import Profile


@dataclass(frozen=True)
class Measured:
    """A finished task of a plan, and its projection onto another GPU if the plan asks for one."""

    task: str
    folder: RunFolder
    projection: dict[str, Any] | None


def run_plan(plan: Plan) -> Iterator[Measured]:
    """Run the tasks of a plan one after the other; yield each when it is finished.

    The prompts of all tasks are read and checked before the first task runs.
    """
    with step_timeout(plan.step_timeout):
        yield from _measured(plan)


def _measured(plan: Plan) -> Iterator[Measured]:
    plan = plan.anchored("out", "data_dir", "profile", "grammar")
    notes = notes_of(plan)
    say = printing_to(notes)
    onto = projected_gpu(plan.project, plan.profile)
    check_device(plan)
    resolved = resolve(plan, by_machine=True)
    check_ready(resolved)
    lines = resolved.notes if plan.verbose else resolved.warnings
    for line in (*lines, *(f"{fault}; its row will be empty" for fault in missing_engines(resolved.rows))):
        say(line)
    from specbench.runner.loading import load_models
    from specbench.runner.projecting import add, profile_for
    from specbench.runner.prompts import prepare
    from specbench.runner.run_task import run_task  # these import torch, so mistakes are reported before

    model, base = load_models(resolved, say)
    steps: Profile | None = None
    for prepared in [prepare(resolved.plan, task, model) for task in resolved.tasks]:
        with RunProgress(notes, verbose=plan.verbose) as progress:
            folder = run_task(resolved, model, prepared, progress, base)
        projection = None
        if onto is not None:
            # After the run, so that it does not affect the measurements.
            steps = steps or profile_for(resolved, model, say)
            projection = add(folder.path, onto, steps)
        yield Measured(prepared.spec.name, folder, projection)


@keywords(Plan)
def run(plan: Plan) -> Run:
    """Run methods on one task: same weights, cache, clock and stop rule; AR always runs with them.

    It is ``specbench run`` with its options as keyword arguments: the same call continues an interrupted run, and
    finished requests are not decoded again. A method or engine that fails does not end the run: its row has the reason
    in ``failed``. If this process is killed, the run ends; only the command line, which watches from another process,
    can continue.

    Returns:
        The run: ``.summary``, ``.frame()``, ``.methods()`` and ``.folder``.

    Raises:
        SpecbenchError: the reason in one line. Finished requests are kept.
    """
    if plan.task is not None and "," in plan.task:
        raise UsageError(f"specbench.run takes one task, not {plan.task}; call it once for each")
    (done,) = run_plan(plan)
    return Run(done.folder.path)
