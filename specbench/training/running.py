"""Running a training: from its plan to a finished folder, through answers, recipe and card."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.common import UsageError, check_writable, keywords, plugins, registry, sole_use, write_json_atomic
from specbench.evals import file_stem, names_file
from specbench.runner import notes_of, printing_to
from specbench.training.choose import choose
from specbench.training.data.given_answers import has_answers
from specbench.training.data.training_prompts import check_sets
from specbench.training.recipe import WeightOptions
from specbench.training.training_plan import BUDGET, TrainPlan, TrajectoriesPlan

if TYPE_CHECKING:
    import pandas as pd

    from specbench.common import Card
    from specbench.engine import Sampling
    from specbench.models import LoadedModel
    from specbench.training.recipe import Text


def run_training(plan: TrainPlan, say: Callable[[str], None]) -> dict[str, Any]:
    """Trains what a method drafts with, going on where an interrupted training of the same folder stopped."""
    card = registry.trainable(plan.method)
    check_sets(plan.sets)
    plan.drawn_by  # noqa: B018  says what is wrong with it before a model is loaded
    # Nothing is timed, so threads need not spin while they wait. Read when torch is loaded, which recipes do.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    module = card.recipe()
    with plugins.plugin_call(card.who):
        chosen = choose(card, module.Options, plan.recipe, plan.settings)
    _check_source(plan, module)
    if plan.dtype == "int8" and isinstance(chosen, WeightOptions):
        # Layers of our own would go on reading the bytes from before a step of the optimizer.
        raise UsageError("weights of int8 do not learn; train in float32 or bfloat16, and decode in int8")
    check_writable(plan.into)
    with _alone(plan.into):
        return _trained(plan, card, module, chosen, say)


def _trained(plan: TrainPlan, card: Card, module: Any, chosen: Any, say: Callable[[str], None]) -> dict[str, Any]:
    """The training itself, of a plan that makes sense."""
    from specbench.common import progress_lines
    from specbench.models import CARD
    from specbench.runner import load_model
    from specbench.training.data.answers import Asking
    from specbench.training.data.sources import Wanted, find
    from specbench.training.recipe import Job, apart, some

    loaded = load_model(plan, say)
    if check := getattr(module, "check", None):
        with plugins.plugin_call(card.who):
            check(chosen, loaded)
    wanted = Wanted(plan.sets, plan.answers, plan.trajectories, plan.limit, plan.data_dir, plan.drawn_by, plan.given)
    asking = Asking(plan.max_new_tokens or BUDGET, plan.concurrency, plan.temperature or 0.0, plan.seed)
    found = find(loaded, wanted, asking, plan.into, progress_lines(say, "answers"))
    if plan.held_out >= len(found.texts):
        raise UsageError(
            f"--held-out {plan.held_out} holds out all {len(found.texts)} prompts, leaving none for training; lower it"
        )
    learnt, aside = apart(found.texts, plan.held_out, plan.seed)
    if plan.texts is not None:
        learnt = some(learnt, plan.texts, plan.seed)
    # A folder is found from wherever the adapter is loaded; a name stays one.
    place = Path(plan.model).expanduser()
    named = str(place.resolve()) if place.exists() else plan.model
    job = Job(loaded, learnt, aside, plan.into, plan.seed, say, named, found.about, found.score)
    with plugins.plugin_call(card.who):
        figures = module.train(chosen, job)
    made = {
        "method": card.name,
        "model": loaded.spec.name,
        "fingerprint": loaded.spec.fingerprint,
        **job.about,
        "seed": plan.seed,
        "options": chosen.model_dump(mode="json"),
        **figures,
    }
    write_json_atomic(plan.into / CARD, made)
    return made


@dataclass(frozen=True)
class Trained:
    """What ``specbench.train`` returns.

    Attributes:
        folder: with the weights; what ``--head`` or ``--model`` takes, where the card does not name another.
        summary: the card: what was learnt from what, with which options, and how it fared on held-out prompts.
    """

    folder: Path
    summary: Mapping[str, Any]

    def frame(self) -> pd.DataFrame:
        """The card as one row, parts of parts as ``after_prompts``: rows of several trainings go below each other."""
        import pandas as pd

        return pd.json_normalize([dict(self.summary)], sep="_")

    def _repr_html_(self) -> str:
        """What a notebook shows: the card, without the recipe's options."""
        lines = ["<table>", f"<caption>{html.escape(str(self.folder))}</caption>"]
        for name, value in self.summary.items():
            if name != "options":
                lines.append(f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>")
        return "\n".join([*lines, "</table>"])


@keywords(TrainPlan)
def train(plan: TrainPlan) -> Trained:
    """Trains what a method drafts with, on the model's own answers to training prompts.

    It is ``specbench train`` with its options as keyword arguments: what is interrupted is gone on with by the same
    call.
    """
    return Trained(plan.into, run_training(plan, printing_to(notes_of(plan))))


def _check_source(plan: TrainPlan, module: Any) -> None:
    """One source of texts, and the one that the recipe learns from."""
    if plan.given:
        _check_given(plan, module)
    else:
        _check_asked(plan)
    if getattr(module, "TRAJECTORIES", False):
        if plan.trajectories is None:
            raise UsageError(
                f"{plan.method} learns from trajectories; make them with specbench train --collect and name their "
                "folder with --trajectories"
            )
    elif not (plan.sets or plan.answers or plan.trajectories):
        raise UsageError("nothing to learn from; give --prompts gsm8k-train, for one, or --answers FOLDER")
    if plan.answers is not None and plan.trajectories is not None:
        raise UsageError("--trajectories already contain the answers; remove --answers")


def _check_asked(plan: TrainPlan) -> None:
    """Files of prompts that the model is asked have no answers of their own."""
    for name in plan.sets:
        if names_file(name) and has_answers(Path(name)):
            raise UsageError(
                f"the rows of {name} have answers; specbench train --given learns those, and without them the model is "
                "asked for its own"
            )


def _check_given(plan: TrainPlan, module: Any) -> None:
    """Answers are given in files, for a recipe that learns texts, and nothing is asked of the model."""
    if getattr(module, "TRAJECTORIES", False):
        raise UsageError(f"{plan.method} learns from trajectories of the model's own answers; leave --given out")
    others = {
        "--answers": plan.answers,
        "--trajectories": plan.trajectories,
        "--temperature": plan.temperature,
        "--max-new-tokens": plan.max_new_tokens,
    }
    if flags := [flag for flag, value in others.items() if value is not None]:
        raise UsageError(f"--given has its answers in the files of --prompts; leave {' and '.join(flags)} out")
    if without := [name for name in plan.sets if not names_file(name)]:
        raise UsageError(f"--given takes files whose rows have answers, not {without[0]}; leave --given out")
    stems = [file_stem(name) for name in plan.sets]
    if twice := [stem for stem in stems if stems.count(stem) > 1]:
        raise UsageError(f"--prompts has two files that are called {twice[0]}; rename one")


def _alone(folder: Path) -> AbstractContextManager[None]:
    """Keeps other calls out of a folder. Processes that train together have one, the first of them."""
    return sole_use(folder) if os.environ.get("RANK", "0") == "0" else nullcontext()


_ROWS = {"cpu": 256, "cuda": 4096}  # where a forward of a small model costs no less per row with more of them


def run_collection(plan: TrajectoriesPlan, say: Callable[[str], None]) -> dict[str, Any]:
    """Collects Jacobi states of the model's own answers, going on where an interrupted collection stopped."""
    if not plan.sets and plan.answers is None:
        raise UsageError("--prompts names nothing; give gsm8k-train, for one, or --answers alone for all in a folder")
    check_sets(plan.sets)
    if not plan.sets:
        _refuse_of_answers(plan)
    plan.drawn_by  # noqa: B018  says what is wrong with it before a model is loaded
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # nothing is timed: threads need not spin while they wait
    check_writable(plan.into)
    with _alone(plan.into):
        return _collected(plan, say)


def _collected(plan: TrajectoriesPlan, say: Callable[[str], None]) -> dict[str, Any]:
    """The collection itself, of a plan that makes sense."""
    from specbench.common import progress_lines
    from specbench.evals import describe_draw
    from specbench.runner import load_model
    from specbench.training.data.collection import Collecting, collect

    loaded = load_model(plan, say)
    texts, sampling = _asked(plan, loaded, say) if plan.sets else _given(plan, loaded)
    how = Collecting(
        plan.block_size, plan.states, plan.init, plan.augment, plan.keep_circles, plan.max_run, plan.seed, plan.shard,
        plan.max_repeats,
    )  # fmt: skip
    most = plan.rows or _ROWS[loaded.model.device.type]
    told = progress_lines(say, "answers with their states")
    return {
        "model": loaded.spec.name,
        "fingerprint": loaded.spec.fingerprint,
        "block_size": plan.block_size,
        "states_kind": plan.states,
        **({"prompts": describe_draw(plan.limit, plan.drawn_by)} if plan.limit is not None else {}),
        **collect(loaded, texts, sampling, how, plan.into, rows=most, told=told),
    }


def _refuse_of_answers(plan: TrajectoriesPlan) -> None:
    """What says how answers are made is no use where all of them are."""
    given = {
        "--limit": plan.limit,
        "--prompt-seed": plan.prompt_seed,
        "--max-new-tokens": plan.max_new_tokens,
        "--temperature": plan.temperature,
    }
    if flags := [flag for flag, value in given.items() if value is not None]:
        raise UsageError(f"{' and '.join(flags)} goes with --prompts: --answers alone takes what is there")


def _asked(plan: TrajectoriesPlan, loaded: LoadedModel, say: Callable[[str], None]) -> tuple[Sequence[Text], Sampling]:
    """The model's answers to training prompts, made where they are missing, and how they were decoded."""
    from specbench.common import progress_lines
    from specbench.engine import Sampling
    from specbench.evals import draw_prompts
    from specbench.training.data.answers import Asking, ask
    from specbench.training.data.training_prompts import training_prompts

    chat = loaded.has_chat_template
    asked = [
        prompt
        for name in plan.sets
        for prompt in draw_prompts(training_prompts([name], chat, plan.data_dir), plan.limit, plan.drawn_by)
    ]
    asking = Asking(plan.max_new_tokens or BUDGET, plan.concurrency, plan.temperature or 0.0, plan.seed)
    texts = ask(loaded, asked, asking, plan.answers or plan.into, progress_lines(say, "answers"))
    return texts, Sampling(temperature=asking.temperature, seed=asking.seed)


def _given(plan: TrajectoriesPlan, loaded: LoadedModel) -> tuple[Sequence[Text], Sampling]:
    """All answers of a folder, in the order in which they were finished, and how they were decoded."""
    from specbench.training.data.answers import read, sampling_of

    assert plan.answers is not None
    return read(plan.answers), sampling_of(plan.answers, loaded)
