"""Find the texts of a training: answers decoded now, or existing answers, trajectories or given files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.common import UsageError
from specbench.evals import describe_draw, draw_prompts, file_stem, known_questions
from specbench.models import LoadedModel, names
from specbench.training.data import answers
from specbench.training.data import trajectory_folder as trajectory
from specbench.training.data.answers import Asking
from specbench.training.data.given_answers import given_texts, read_given
from specbench.training.data.training_prompts import check_unmeasured, scorer, training_prompts
from specbench.training.recipe import Text


@dataclass(frozen=True)
class Wanted:
    """Texts to find.

    Attributes:
        sets: names of training sets; empty uses all texts in ``trajectories`` or ``answers``.
        answers: folder of answers. Answers to ``sets`` that it lacks are decoded into it; without ``sets`` it is only
            read. None is the training's own folder.
        limit: texts of each set, see :func:`specbench.evals.prompt_draw.draw_prompts`; None is all.
        prompt_seed: seed for sampling ``limit`` texts; None takes the first ones of each set.
        given: ``sets`` are files whose rows have answers, which are learnt as they are.
    """

    sets: Sequence[str] = ()
    answers: Path | None = None
    trajectories: Path | None = None
    limit: int | None = None
    data_dir: Path | None = None
    prompt_seed: int | None = 0
    given: bool = False


@dataclass(frozen=True)
class Found:
    """Texts, facts on them for the model card, and their scorer.

    Attributes:
        texts: :class:`Text` or :class:`specbench.training.data.trajectory_folder.Trajectory`.
    """

    texts: Sequence[Any]
    about: Mapping[str, Any]
    score: Callable[[str, str], bool | None]


def find(
    loaded: LoadedModel, wanted: Wanted, asking: Asking, folder: Path, progress: Callable[[int, int], None]
) -> Found:
    """Return the texts to train on.

    Args:
        loaded: the target; answers and trajectories of other models are refused.
        folder: default of ``wanted.answers``.
        progress: see :func:`specbench.training.data.answers.ask`.
    """
    about: dict[str, Any] = {}
    made_in = wanted.answers or folder
    if wanted.trajectories:
        header = trajectory.read_header(wanted.trajectories)
        texts: Sequence[Any] = list(trajectory.read(wanted.trajectories, model=loaded.spec.fingerprint))
        about["trajectories"] = {"block_size": header.block_size, **header.settings}
        about["collecting_hours"] = trajectory.hours(wanted.trajectories)
    elif wanted.given:
        texts, about["given"] = _given(loaded, wanted)
    elif wanted.sets:
        sets_of_prompts = [training_prompts([name], loaded.has_chat_template, wanted.data_dir) for name in wanted.sets]
        prompts = [
            prompt for each in sets_of_prompts for prompt in draw_prompts(each, wanted.limit, wanted.prompt_seed)
        ]
        texts = answers.ask(loaded, prompts, asking, made_in, progress)
        about |= {"answers": answers.made(made_in, loaded), "collecting_hours": answers.hours(made_in)}
    else:
        about |= {"answers": answers.made(made_in, loaded), "collecting_hours": answers.hours(made_in)}
        texts = answers.read(made_in)
    if about.get("collecting_hours", 0.0) is None:  # an older version made them
        del about["collecting_hours"]
    if read := names.aliases().get(loaded.spec.name, {}).get("pretraining_tokens"):
        about["pretraining_tokens"] = read
    texts = _of(texts, wanted)
    if wanted.limit is not None:
        about["limit"] = describe_draw(wanted.limit, wanted.prompt_seed)
    sets = wanted.sets or sorted({_set(text) for text in texts})
    named = [Path(name).name for name in sets] if wanted.given else list(sets)
    return Found(texts, {"prompts": named, **about}, scorer(sets, loaded.has_chat_template, wanted.data_dir))


def _given(loaded: LoadedModel, wanted: Wanted) -> tuple[list[Text], dict[str, str]]:
    """Return the texts of files with answers, and the files' hashes by name."""
    texts: list[Text] = []
    hashes: dict[str, str] = {}
    known = known_questions(wanted.data_dir)
    for name in wanted.sets:
        rows, digest = read_given(Path(name), loaded.has_chat_template)
        hashes[Path(name).name] = digest
        for row in rows:
            check_unmeasured(row.prompt.text, row.line, known)
        texts += given_texts(loaded, draw_prompts(rows, wanted.limit, wanted.prompt_seed))
    return texts, hashes


def _of(texts: Sequence[Text], wanted: Wanted) -> list[Text]:
    stems = {file_stem(name) for name in wanted.sets}
    by_set: dict[str, list[Text]] = defaultdict(list)
    for text in texts:
        by_set[_set(text)].append(text)
    taken = {
        text.id
        for name, mine in by_set.items()
        if not stems or name in stems
        for text in draw_prompts(mine, wanted.limit, wanted.prompt_seed)
    }
    chosen = [text for text in texts if text.id in taken]
    if not chosen:
        raise UsageError(
            f"cannot train: no text belongs to {', '.join(sorted(stems)) or 'any set'}; correct or remove --prompts"
        )
    return chosen


def _set(text: Text) -> str:
    return text.id.partition("/")[0]
