"""Load prompts for training: training splits of tasks and users' own files, but never prompts of measured tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specbench.common import Prompt, UsageError, parse_options, plugins, registry, unknown_name
from specbench.evals import FORMATS, file_stem, known_questions, names_file, task_asking
from specbench.training.data.given_answers import sharegpt_prompts

_SUFFIX = "-train"


def check_sets(names: Sequence[str]) -> None:
    """Refuse names that are not training sets, before anything is loaded."""
    for name in names:
        if names_file(name):
            if not Path(name).is_file():
                raise UsageError(f"cannot read prompt file {name}: there is no such file; correct --prompts")
            if not name.endswith(FORMATS):
                raise UsageError(
                    f"cannot read prompt file {name}: its name ends with none of {', '.join(FORMATS)}; convert or "
                    "rename it"
                )
            continue
        trains = trainable()
        task = name.removesuffix("-test").removesuffix(_SUFFIX)
        if name.endswith(_SUFFIX) and task in trains:
            continue
        if task in trains:
            raise UsageError(
                f"cannot train on {name}: decoders are measured on this task; use its training split {task}{_SUFFIX}"
            )
        if task in registry.tasks():
            offers = ", ".join(f"{each}{_SUFFIX}" for each in trains)
            raise UsageError(
                f"cannot train on task {task}: decoders are measured on it and it has no training split; use {offers}"
            )
        raise unknown_name("prompt set", name, [f"{each}{_SUFFIX}" for each in trains])


def trainable() -> list[str]:
    """Return the names of tasks whose ``task.toml`` declares a training split."""
    return [name for name, card in registry.tasks().items() if card.info.get("training", False)]


def training_prompts(names: Sequence[str], chat: bool, data_dir: Path | None = None) -> list[Prompt]:
    """Return the prompts of several sets, one set after the other, with ids ``SET/ID``.

    Args:
        names: ``TASK-train``, or paths of files as for ``--task prompts``.
        chat: whether the model has a chat template.
    """
    check_sets(names)
    found: list[Prompt] = []
    known = known_questions(data_dir) if any(names_file(name) for name in names) else {}
    for name in names:
        prompts = sharegpt_prompts(Path(name), chat) if names_file(name) else None
        if prompts is None:
            made, who = _task(name, data_dir)
            with plugins.plugin_call(who):
                prompts = made.prompts(chat) if names_file(name) else made.training_prompts(chat)
        if any(prompt.turns > 1 for prompt in prompts):
            raise UsageError(
                f"cannot train on {name}: its conversations have several user turns to answer; give rows with "
                "'messages' that hold the turns so far"
            )
        if names_file(name):
            for prompt in prompts:
                check_unmeasured(prompt.text, f"prompt {prompt.id} of {name}", known)
        prefix = file_stem(name) if names_file(name) else name
        found += [replace(prompt, id=f"{prefix}/{prompt.id}") for prompt in prompts]
    return found


def check_unmeasured(text: str, where: str, known: dict[str, str]) -> None:
    """Refuse a prompt that is a question of a task, word for word."""
    task = task_asking(text, known)
    if task is not None:
        raise UsageError(
            f"cannot train on {where}: it is a question of task {task}, on which decoders are measured; remove it"
        )


def scorer(names: Sequence[str], chat: bool, data_dir: Path | None = None) -> Callable[[str, str], bool | None]:
    """Return the function that scores answers: (prompt id, text) -> whether it is correct; None if it has no scorer.

    Args:
        names, chat, data_dir: see :func:`training_prompts`. Answers to users' files, and to tasks that only score their
            test split, are not scored.
    """
    trains = {f"{name}{_SUFFIX}" for name in trainable()}
    judges: dict[str, tuple[Any, str]] = {}

    def score(prompt_id: str, text: str) -> bool | None:
        name, _, own = prompt_id.partition("/")
        if name not in names or name not in trains:
            return None
        if name not in judges:
            made, who = _task(name, data_dir)
            judges[name] = getattr(made, "score_training", None), who
            if judges[name][0]:
                with plugins.plugin_call(who):
                    made.training_prompts(chat)  # sets the prompt style, which determines how answers are parsed
        judge, who = judges[name]
        with plugins.plugin_call(who):  # attributes errors to the task instead of the method that is training
            return judge(own, text).passed if judge else None

    return score


def _task(name: str, data_dir: Path | None) -> tuple[Any, str]:
    """Return the instantiated task of a set, and its name for error messages."""
    task, settings = (name.removesuffix(_SUFFIX), {}) if not names_file(name) else (_taker(), {"file": name})
    card = registry.task(task)
    module = card.load()
    with plugins.plugin_call(card.who):
        return module.Task(parse_options(module.Options, settings, f"task {task}"), data_dir), card.who


def _taker() -> str:
    """Return the name of the task that reads prompts from a user's file."""
    cards = registry.tasks().items()
    files = {name: card.info for name, card in cards if card.info.get("data_file")}
    return next(name for name, info in files.items() if not (info.get("data") or info.get("sample")))
