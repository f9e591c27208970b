"""Tasks of lm-eval by name, its own or the user's, loaded with their data before a model is."""

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
    """lm-eval without its bars and advice, and without collecting facts of the machine, which nobody keeps here."""
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
    """lm-eval's manager of tasks, which has loaded these: tasks, groups or tags, or patterns of them ("mmlu_*").

    The user's own tasks in ``include`` win over lm-eval's. Raises UsageError for an unknown name, a mistake in a task
    file, or a task that runs what a model wrote; EnvironmentRefused where lm-eval or a task's data are missing.
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
                raise unknown_name("task of lm-eval", name, manager.all_tasks)
            meant.update(dict.fromkeys(found))
        loaded = _loaded(manager, list(meant))
    for name, task in loaded["tasks"].items():
        if getattr(task, "UNSAFE_CODE", False):
            raise UsageError(
                f"lm-eval's {name} runs what a model wrote, unconfined; specbench run has such tasks in a sandbox, "
                "--task humaneval for one"
            )
    # What a runner asks its manager for, again for each model: the same documents.
    manager.load = lambda *_: loaded
    return manager


def _manager(kind: Any, names: Sequence[str], include: Path | None) -> Any:
    """With the user's tasks alone where these are all: to read the names of lm-eval's own takes seconds."""
    if include is not None:
        try:
            own = kind(include_path=[str(include)], include_defaults=False)
        except Exception as error:
            raise UsageError(f"--include {include}: {_reason(error)}; fix its task files") from error
        if all(fnmatch.filter(own.all_tasks, name) for name in names):
            return own
    return kind(include_path=[str(include)] if include else None)


def _loaded(manager: Any, names: Sequence[str]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = manager.load(list(names))
    except ModuleNotFoundError as error:
        raise refusal("this task", str(error.name)) from error
    except OSError as error:  # also what datasets raises of data that are not there, and of a hub out of reach
        raise EnvironmentRefused(
            f"the data of {', '.join(names)} cannot be had ({_reason(error)}); lm-eval fetches them from a hub: check "
            "network and HF_HUB_OFFLINE, or give tasks on data of your own with --include"
        ) from error
    except Exception as error:
        raise UsageError(f"{', '.join(names)} cannot be loaded: {_reason(error)}; fix the task's file") from error
    if not found["tasks"]:
        raise UsageError(f"{', '.join(names)} has no task in it; name others")
    return found


def _reason(error: Exception) -> str:
    return one_line(str(error), 160) or type(error).__name__
