"""Training prompts: training splits of tasks, and a user's own files; never what decoders are timed on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specbench.common import Prompt, UsageError, parse_options, plugins, registry, unknown_name
from specbench.evals import FORMATS, file_stem, known_questions, names_file, task_asking

_SUFFIX = "-train"


def check_sets(names: Sequence[str]) -> None:
    """Refuses what is no training set, before anything is loaded."""
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
                f"{name} is what decoders are measured on, so nothing is trained on it; use {task}{_SUFFIX}"
            )
        if task in registry.tasks():
            offers = ", ".join(f"{each}{_SUFFIX}" for each in trains)
            raise UsageError(f"task {task} is what decoders are measured on and has no training split; use {offers}")
        raise unknown_name("prompt set", name, [f"{each}{_SUFFIX}" for each in trains])


def trainable() -> list[str]:
    """Tasks with a training split, which say so in their ``task.toml``."""
    return [name for name, card in registry.tasks().items() if card.info.get("training", False)]


def training_prompts(names: Sequence[str], chat: bool, data_dir: Path | None = None) -> list[Prompt]:
    """The prompts of several sets, one after the other; each set's name stands before its ids.

    Args:
        names: ``TASK-train``, or paths of files as ``--task prompts`` takes them.
    """
    check_sets(names)
    found: list[Prompt] = []
    known = known_questions(data_dir) if any(names_file(name) for name in names) else {}
    for name in names:
        made, who = _task(name, data_dir)
        with plugins.plugin_call(who):
            prompts = made.prompts(chat) if names_file(name) else made.training_prompts(chat)
        if any(prompt.follow_ups for prompt in prompts):
            raise UsageError(f"{name} has conversations of several turns; give their turns so far as messages")
        if names_file(name):
            for prompt in prompts:
                check_unmeasured(prompt.text, f"prompt {prompt.id} of {name}", known)
        prefix = file_stem(name) if names_file(name) else name
        found += [replace(prompt, id=f"{prefix}/{prompt.id}") for prompt in prompts]
    return found


def check_unmeasured(text: str, where: str, known: dict[str, str]) -> None:
    """Refuses a prompt that is a question of a task, word for word."""
    task = task_asking(text, known)
    if task is not None:
        raise UsageError(
            f"{where} is a question of {task}, which decoders are measured on, so nothing is trained on it; "
            "leave it out"
        )


def scorer(names: Sequence[str], chat: bool, data_dir: Path | None = None) -> Callable[[str, str], bool | None]:
    """Who judges answers to training prompts: (prompt id, text) -> right or wrong; None where nobody can say.

    Args:
        names, chat, data_dir: as of :func:`training_prompts`. Sets that are none, or whose task judges its test split
            only, get no verdict.
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
                    made.training_prompts(chat)  # settles how they are asked, and so what an answer looks like
        judge, who = judges[name]
        with plugins.plugin_call(who):  # or the method whose recipe asks would be blamed
            return judge(own, text).passed if judge else None

    return score


def _task(name: str, data_dir: Path | None) -> tuple[Any, str]:
    """The task of a set, made, and how an error names it."""
    task, settings = (name.removesuffix(_SUFFIX), {}) if not names_file(name) else (_taker(), {"file": name})
    card = registry.task(task)
    module = card.load()
    with plugins.plugin_call(card.who):
        return module.Task(parse_options(module.Options, settings, f"task {task}"), data_dir), card.who


def _taker() -> str:
    """The task that reads a user's file, whatever is asked in it."""
    cards = registry.tasks().items()
    return next(name for name, card in cards if card.info.get("data_file") and not card.info.get("data"))
