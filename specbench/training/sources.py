"""Sources: where the texts of a training come from, prompts asked now, or answers and trajectories that are there.

Prompts are the training splits of tasks and a user's own files. Never what decoders are measured on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specbench.common import Prompt, UsageError, guests, registry
from specbench.common.errors import unknown
from specbench.common.options import parse
from specbench.evals.draw import draw, said
from specbench.models import LoadedModel
from specbench.training import answers, trajectory
from specbench.training.answers import Asking
from specbench.training.recipe import Text

_SUFFIX = "-train"


def check_sets(names: Sequence[str]) -> None:
    """Refuses what is no training set, before anything is loaded.

    Raises:
        UsageError: a test split, a task without a training split, a missing file, or an unknown name.
    """
    for name in names:
        if name.endswith(".jsonl"):
            if not Path(name).is_file():
                raise UsageError(f"prompt file {name} does not exist; give a .jsonl file as for --task prompts")
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
        raise unknown("prompt set", name, [f"{each}{_SUFFIX}" for each in trains])


def trainable() -> list[str]:
    """Tasks with a training split, which say so in their ``task.toml``."""
    return [name for name, card in registry.tasks().items() if card.info.get("training", False)]


def training_prompts(names: Sequence[str], chat: bool, data_dir: Path | None = None) -> list[Prompt]:
    """The prompts of several sets, one after the other; each set's name stands before its ids.

    Args:
        names: ``TASK-train``, or paths of ``.jsonl`` files as ``--task prompts`` takes them.
        chat: whether the model has a chat template.
        data_dir: as of ``--data-dir``.

    Raises:
        UsageError: see :func:`check_sets`; or conversations, whose later turns have no answer to follow yet.
        EnvironmentRefused: a data file is nowhere on this machine.
    """
    check_sets(names)
    found: list[Prompt] = []
    for name in names:
        made = _task(name, data_dir)
        prompts = made.prompts(chat) if name.endswith(".jsonl") else made.training_prompts(chat)
        if any(prompt.follow_ups for prompt in prompts):
            raise UsageError(f"{name} has conversations of several turns; give their turns so far as messages")
        prefix = Path(name).stem
        found += [replace(prompt, id=f"{prefix}/{prompt.id}") for prompt in prompts]
    return found


def scorer(names: Sequence[str], chat: bool, data_dir: Path | None = None) -> Callable[[str, str], bool | None]:
    """Who judges answers to training prompts: (prompt id, text) -> right or wrong; None where nobody can say.

    Args:
        names, chat, data_dir: as of :func:`training_prompts`. Sets that are none, or whose task judges its test split
            only, get no verdict.
    """
    trains = {f"{name}{_SUFFIX}" for name in trainable()}
    judges: dict[str, Any] = {}

    def score(prompt_id: str, text: str) -> bool | None:
        name, _, own = prompt_id.partition("/")
        if name not in names or name not in trains:
            return None
        if name not in judges:
            made = _task(name, data_dir)
            judges[name] = getattr(made, "score_training", None)
            if judges[name]:
                made.training_prompts(chat)  # settles how they are asked, and so what an answer looks like
        return judges[name](own, text).passed if judges[name] else None

    return score


def _task(name: str, data_dir: Path | None) -> Any:
    """The task of a set, made."""
    task, settings = (name.removesuffix(_SUFFIX), {}) if not name.endswith(".jsonl") else (_taker(), {"file": name})
    card = registry.task(task)
    module = card.load()
    with guests.hosting(card.who):
        return module.Task(parse(module.Options, settings, f"task {task}"), data_dir)


def _taker() -> str:
    """The task that reads a user's file."""
    return next(name for name, card in registry.tasks().items() if card.info.get("data_file"))


@dataclass(frozen=True)
class Wanted:
    """Which texts.

    Attributes:
        sets: names of training sets; empty takes all that ``trajectories`` or ``answers`` have.
        answers: folder of answers made before. Those that ``sets`` have and it lacks are made there; without ``sets``
            it is only read. None is the training's own folder.
        trajectories: folder of trajectories.
        limit: texts of each set, see :func:`specbench.evals.draw.draw`; None is all.
        data_dir: as of ``--data-dir``.
        prompt_seed: of the draw; None takes the first of each set.
    """

    sets: Sequence[str] = ()
    answers: Path | None = None
    trajectories: Path | None = None
    limit: int | None = None
    data_dir: Path | None = None
    prompt_seed: int | None = 0


@dataclass(frozen=True)
class Found:
    """Texts with what there is to say of them.

    Attributes:
        texts: :class:`Text` or :class:`specbench.training.trajectory.Trajectory`.
        about: for a card: their sets, and how the answers were made.
        score: as of :class:`specbench.training.recipe.Job`.
    """

    texts: Sequence[Any]
    about: Mapping[str, Any]
    score: Callable[[str, str], bool | None]


def find(loaded: LoadedModel, wanted: Wanted, asking: Asking, folder: Path, told: Callable[[int, int], None]) -> Found:
    """The texts to train on.

    Args:
        loaded: the target, whose own they have to be.
        wanted: which.
        asking: how prompts are asked that have no answer yet.
        folder: receives those answers.
        told: as of :func:`specbench.training.answers.ask`.

    Raises:
        UsageError: they are another model's, or there are none.
        EnvironmentRefused: no memory, or the disk is full.
    """
    about: dict[str, Any] = {}
    made_in = wanted.answers or folder
    if wanted.trajectories:
        header = trajectory.read_header(wanted.trajectories)
        texts: Sequence[Any] = list(trajectory.read(wanted.trajectories, model=loaded.spec.fingerprint))
        about["trajectories"] = {"block_size": header.block_size, **header.settings}
    elif wanted.sets:
        sets_of_prompts = [training_prompts([name], loaded.has_chat_template, wanted.data_dir) for name in wanted.sets]
        prompts = [prompt for each in sets_of_prompts for prompt in draw(each, wanted.limit, wanted.prompt_seed)]
        texts = answers.ask(loaded, prompts, asking, made_in, told)
        about["answers"] = answers.made(made_in, loaded)
    else:
        about["answers"] = answers.made(made_in, loaded)
        texts = answers.read(made_in)
    texts = _of(texts, wanted)
    if wanted.limit is not None:
        about["limit"] = said(wanted.limit, wanted.prompt_seed)
    sets = wanted.sets or sorted({_set(text) for text in texts})
    return Found(texts, {"prompts": list(sets), **about}, scorer(sets, loaded.has_chat_template, wanted.data_dir))


def _of(texts: Sequence[Text], wanted: Wanted) -> list[Text]:
    stems = {Path(name).stem for name in wanted.sets}
    by_set: dict[str, list[Text]] = defaultdict(list)
    for text in texts:
        by_set[_set(text)].append(text)
    taken = {
        text.id
        for name, mine in by_set.items()
        if not stems or name in stems
        for text in draw(mine, wanted.limit, wanted.prompt_seed)
    }
    chosen = [text for text in texts if text.id in taken]
    if not chosen:
        raise UsageError(f"none of the texts is of {', '.join(sorted(stems)) or 'any set'}; leave --prompts out")
    return chosen


def _set(text: Text) -> str:
    return text.id.partition("/")[0]
