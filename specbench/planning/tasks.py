"""Turn the names and settings of ``--task`` and ``--task-set`` into tasks with checked options; data is read later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from specbench.common import UsageError, parse_options, plugins, registry, unknown_name
from specbench.evals import recording_files
from specbench.models import names as models
from specbench.results import TaskData


@dataclass(frozen=True)
class TaskPlan:
    """A task with its validated options; if ``data_dir`` is None, :mod:`specbench.evals.data` searches its data."""

    card: registry.Card
    options: Any
    module: Any
    data_dir: Path | None

    @property
    def instance(self) -> Any:
        """The task itself. Its data is read at first use, before the model is loaded."""
        return self._made[0]

    @property
    def data(self) -> dict[str, TaskData]:
        """The data files that the task has read, by name."""
        return self._made[1]

    @cached_property
    def _made(self) -> tuple[Any, dict[str, TaskData]]:
        with recording_files() as files, plugins.plugin_call(self.card.who):
            return self.module.Task(self.options, self.data_dir), files


def plan_tasks(names: Sequence[str], settings: Sequence[str], data_dir: Path | None = None) -> tuple[TaskPlan, ...]:
    """Make tasks; ``settings`` are ``TASK.OPTION=VALUE``."""
    raw: dict[str, dict[str, str]] = {registry.task(name).name: {} for name in names}
    for setting in settings:
        target, equals, value = setting.partition("=")
        task, dot, option = target.partition(".")
        if not equals or not dot or not option or not value:
            raise UsageError(
                f"--task-set {setting}: write TASK.OPTION=VALUE, as in --task-set humaneval.style=completion"
            )
        if task not in raw:
            raise unknown_name("task", task, raw, "in --task-set", choose="name one of --task")
        if option in raw[task]:
            raise UsageError(f"--task-set {setting}: option '{option}' of {task} is set twice; keep one")
        raw[task][option] = value
    plans = []
    for name, values in raw.items():
        card = registry.task(name)
        module = card.load()
        with plugins.plugin_call(card.who):
            plans.append(
                TaskPlan(card, parse_options(module.Options, values, name, f"--task-set {name}"), module, data_dir)
            )
    return tuple(plans)


def prompt_style(model: str, tasks: Sequence[str], settings: Sequence[str]) -> list[str]:
    """Task options that match the prompts that a checkpoint was trained with, as ``--task-set`` takes them.

    Options that the user or a preset has set are left out.
    """
    taken = {setting.partition("=")[0] for setting in settings}
    asks = models.aliases().get(model, {}).get("asks", {})
    wanted = [f"{task}.{option}={value}" for task in tasks for option, value in asks.get(task, {}).items()]
    return [setting for setting in wanted if setting.partition("=")[0] not in taken]


def file_settings(tasks: Sequence[str], settings: Sequence[str], file: Path | None) -> list[str]:
    """Expand ``--data-file`` to settings of the tasks that take a data file according to their ``task.toml``."""
    takers = [name for name, card in registry.tasks().items() if card.info.get("data_file")]
    chosen = [name for name in takers if name in tasks]
    if file is not None and not chosen:
        raise UsageError(f"--data-file needs --task {' or '.join(takers)}; {','.join(tasks)} has its own data")
    for name in chosen:
        info = registry.task(name).info
        needed = not (info.get("data") or info.get("sample"))  # found in --data-dir, or shipped with the task
        if needed and file is None and not any(setting.startswith(f"{name}.file=") for setting in settings):
            raise UsageError(f"--task {name} needs --data-file FILE; specbench list {name} says of what")
    return [f"{name}.file={file}" for name in chosen] if file is not None else []
