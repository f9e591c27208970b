"""Find and load lm-eval's or the user's tasks with their data, before any model is loaded."""

from __future__ import annotations

import contextlib
import fnmatch
import logging
from collections.abc import Iterator, Sequence
from functools import partialmethod
from pathlib import Path
from typing import Any

from specbench.common import EnvironmentRefused, UsageError, one_line, unknown_name
from specbench.evals import refusal


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Disable lm-eval's progress bars and advice, and its collection of facts on the machine, which are not used."""
    import datasets
    from lm_eval import evaluator
    from tqdm.std import tqdm

    datasets.disable_progress_bars()
    log = logging.getLogger("lm_eval")
    level = log.level
    replaced = [(tqdm, "__init__"), (evaluator, "add_env_info"), (evaluator, "get_git_commit_hash")]
    own = [(owner, name, getattr(owner, name)) for owner, name in replaced]
    try:
        log.setLevel(logging.ERROR)
        tqdm.__init__ = partialmethod(tqdm.__init__, disable=True)
        evaluator.add_env_info = lambda storage: None
        evaluator.get_git_commit_hash = lambda: None
        yield
    finally:
        log.setLevel(level)
        for owner, name, value in own:
            setattr(owner, name, value)


def find_tasks(names: Sequence[str], include: Path | None) -> Any:
    """Load tasks, groups or tags, or patterns such as "mmlu_*", and return lm-eval's task manager with them.

    The user's tasks in ``include`` override lm-eval's.

    Raises:
        UsageError: a name is unknown, a task file has a mistake, or a task runs code that a model wrote.
        EnvironmentRefused: lm-eval or a task's data are missing.
    """
    try:
        from lm_eval.tasks import TaskManager
    except ModuleNotFoundError as error:
        raise refusal("specbench quality", str(error.name)) from error
    with quiet():
        manager = _manager(TaskManager, names, include)
        meant: dict[str, None] = {}
        for name in names:
            if not (found := fnmatch.filter(manager.all_tasks, name)):
                raise unknown_name("task", name, manager.all_tasks, "of lm-eval", see="lm-eval ls tasks shows all")
            meant.update(dict.fromkeys(found))
        loaded = _loaded(manager, list(meant))
    for name, task in loaded["tasks"].items():
        if getattr(task, "UNSAFE_CODE", False):
            raise UsageError(
                f"cannot run lm-eval's {name}: it runs code that a model wrote without a sandbox; use specbench run, "
                "which runs such tasks in a sandbox, for example --task humaneval"
            )
    # lm-eval loads tasks again for each model; this way all models get the same documents.
    manager.load = lambda *_: loaded
    return manager


def _manager(kind: Any, names: Sequence[str], include: Path | None) -> Any:
    """Create a task manager, without lm-eval's own tasks if none is asked for: reading their names takes seconds."""
    if include is not None:
        try:
            own = kind(include_path=[str(include)], include_defaults=False)
        except Exception as error:
            raise UsageError(f"cannot use --include {include}: {_reason(error)}; correct its task files") from error
        if all(fnmatch.filter(own.all_tasks, name) for name in names):
            return own
    return kind(include_path=[str(include)] if include else None)


def _loaded(manager: Any, names: Sequence[str]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = manager.load(list(names))
    except ModuleNotFoundError as error:
        raise refusal("this task", str(error.name)) from error
    except OSError as error:  # raised by datasets too, for missing data and an unreachable hub
        raise EnvironmentRefused(
            f"cannot get the data of {', '.join(names)}: {_reason(error)}; check network and HF_HUB_OFFLINE, since "
            "lm-eval downloads data from the hub, or give tasks with local data in --include"
        ) from error
    except Exception as error:
        raise UsageError(f"cannot load {', '.join(names)}: {_reason(error)}; correct the task's file") from error
    if not found["tasks"]:
        raise UsageError(f"cannot run {', '.join(names)}: it contains no task; name others in --tasks")
    return found


def _reason(error: Exception) -> str:
    return one_line(str(error), 160) or type(error).__name__
