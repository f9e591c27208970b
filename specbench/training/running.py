"""Run ``specbench train``: make or read the answers, train with the method's recipe, write the model card."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.common import UsageError, check_writable, keywords, plugins, registry, sole_use, write_json_atomic
from specbench.evals import file_stem, names_file
from specbench.models import CARD
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
    """Run the recipe of a method, resuming an interrupted training in the same folder; return the model card."""
    card = registry.trainable(plan.method)
    check_sets(plan.sets)
    plan.drawn_by  # noqa: B018  raises for a wrong value before a model is loaded
    # Training is not timed, so threads need not spin while they wait. Must be set before a recipe imports torch.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    module = card.recipe()
    with plugins.plugin_call(card.who):
        chosen = choose(card, module.Options, plan.recipe, plan.settings)
    _check_source(plan, module)
    if plan.dtype in ("int8", "packed") and isinstance(chosen, WeightOptions):
        # The layers would still read the packed weights from before the optimizer's step.
        raise UsageError(
            f"cannot train in --dtype {plan.dtype}: it is for decoding only; give --dtype float32 or bfloat16"
        )
    if plan.quantize and isinstance(chosen, WeightOptions):
        raise UsageError(f"cannot train weights of --quantize {plan.quantize}; remove it")
    check_writable(plan.into)
    with _alone(plan.into), _without_denormals():
        return _trained(plan, card, module, chosen, say)


@contextmanager
def _without_denormals() -> Iterator[None]:
    """Treat denormal numbers as zero: a CPU is so slow with them that a step of a block head took 1.2 times as long.

    They are the tails of softmaxes. Threads of torch's pool inherit the setting if they start afterwards.
    """
    import torch

    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _check_held_out(held_out: int, prompts: int) -> None:
    if held_out >= prompts:
        raise UsageError(
            f"cannot hold out {held_out} of {prompts} prompts: none would be left for training; hold out fewer"
        )


def _trained(plan: TrainPlan, card: Card, module: Any, chosen: Any, say: Callable[[str], None]) -> dict[str, Any]:
    """Train according to a checked plan and return the model card."""
    from specbench.common import progress_lines
    from specbench.runner import load_model
    from specbench.training.data.answers import Asking
    from specbench.training.data.sources import Wanted, find
    from specbench.training.recipe import Job, apart, some

    if plan.limit is not None:  # before answers are decoded for minutes
        _check_held_out(plan.held_out, plan.limit * max(1, len(plan.sets)))
    loaded = load_model(plan, say)
    if check := getattr(module, "check", None):
        with plugins.plugin_call(card.who):
            check(chosen, loaded)
    wanted = Wanted(plan.sets, plan.answers, plan.trajectories, plan.limit, plan.data_dir, plan.drawn_by, plan.given)
    asking = Asking(plan.max_new_tokens or BUDGET, plan.concurrency, plan.temperature or 0.0, plan.seed)
    found = find(loaded, wanted, asking, plan.into, progress_lines(say, "answers"))
    _check_held_out(plan.held_out, len(found.texts))
    learnt, aside = apart(found.texts, plan.held_out, plan.seed)
    if plan.texts is not None:
        learnt = some(learnt, plan.texts, plan.seed)
    # The adapter's base model must be found from any working directory, so a folder becomes an absolute path.
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
    """Result of ``specbench.train``.

    Attributes:
        folder: output folder. The card's ``weights``, if present, is the path to give to ``--head`` or ``--model``.
        summary: content of the model card: training data, options and figures on held-out prompts.
    """

    folder: Path
    summary: Mapping[str, Any]

    def frame(self) -> pd.DataFrame:
        """Return the card as one row; nested entries become columns such as ``after_prompts``."""
        import pandas as pd

        return pd.json_normalize([dict(self.summary)], sep="_")

    def _repr_html_(self) -> str:
        """Return the card without the recipe's options, as a table for notebooks."""
        lines = ["<table>", f"<caption>{html.escape(str(self.folder))}</caption>"]
        for name, value in self.summary.items():
            if name != "options":
                lines.append(f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>")
        return "\n".join([*lines, "</table>"])


@keywords(TrainPlan)
def train(plan: TrainPlan) -> Trained:
    """Train a method's draft head, draft model or adapter on the model's own answers to training prompts.

    Takes the options of ``specbench train`` as keyword arguments. The same call resumes an interrupted training.
    """
    return Trained(plan.into, run_training(plan, printing_to(notes_of(plan))))


def _check_source(plan: TrainPlan, module: Any) -> None:
    """Refuse a plan with more than one source of texts, or with one that the recipe does not learn from."""
    if plan.given:
        check_given(plan, module)
    else:
        _check_asked(plan)
    if getattr(module, "TRAJECTORIES", False):
        if plan.trajectories is None:
            raise UsageError(
                f"cannot train {plan.method}: it learns from trajectories; make them with specbench train --collect "
                "and give their folder as --trajectories"
            )
    elif not (plan.sets or plan.answers or plan.trajectories):
        raise UsageError(
            "cannot train: there are no training prompts or answers; give --prompts gsm8k-train, for example, or "
            "--answers FOLDER"
        )
    if plan.answers is not None and plan.trajectories is not None:
        raise UsageError("cannot use --answers with --trajectories: trajectories contain the answers; remove --answers")


def _check_asked(plan: TrainPlan) -> None:
    """Refuse prompt files whose rows have answers: without ``--given`` the model would be asked for its own."""
    for name in plan.sets:
        if names_file(name) and has_answers(Path(name)):
            raise UsageError(
                f"cannot ask the model for answers to {name}: its rows have answers; give --given to learn those, or "
                "remove them from the file"
            )


def check_given(plan: TrainPlan, module: Any) -> None:
    """Refuse ``--given`` for a recipe that needs trajectories, with options of generated answers, or without files."""
    if getattr(module, "TRAJECTORIES", False):
        raise UsageError(
            f"cannot train {plan.method} with --given: it learns from trajectories of the model's own answers; remove "
            "--given"
        )
    others = {
        "--answers": plan.answers,
        "--trajectories": plan.trajectories,
        "--temperature": plan.temperature,
        "--max-new-tokens": plan.max_new_tokens,
    }
    if flags := [flag for flag, value in others.items() if value is not None]:
        raise UsageError(
            f"cannot use {' and '.join(flags)} with --given: the answers come from the files of --prompts; remove "
            f"{' and '.join(flags)}"
        )
    if without := [name for name in plan.sets if not names_file(name)]:
        raise UsageError(
            f"cannot use --given with --prompts {without[0]}: it takes files whose rows have answers; remove --given"
        )
    stems = [file_stem(name) for name in plan.sets]
    if twice := [stem for stem in stems if stems.count(stem) > 1]:
        raise UsageError(f"cannot use --prompts: two of its files are named {twice[0]}; rename one")


def _alone(folder: Path) -> AbstractContextManager[None]:
    """Lock a folder against other calls. If several processes train together, the first one locks it."""
    return sole_use(folder) if os.environ.get("RANK", "0") == "0" else nullcontext()


_ROWS = {"cpu": 256, "cuda": 4096}  # from here on, more rows do not lower the cost per row of a small model's forward


def run_collection(plan: TrajectoriesPlan, say: Callable[[str], None]) -> dict[str, Any]:
    """Collect Jacobi states of the model's own answers, resuming an interrupted collection; return its summary."""
    if not plan.sets and plan.answers is None:
        raise UsageError(
            "cannot collect trajectories: there are no prompts or answers; give --prompts gsm8k-train, for example, or "
            "--answers FOLDER for all answers in a folder"
        )
    check_sets(plan.sets)
    if not plan.sets:
        _refuse_of_answers(plan)
    plan.drawn_by  # noqa: B018  raises for a wrong value before a model is loaded
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # not timed: threads need not spin while they wait
    check_writable(plan.into)
    with _alone(plan.into):
        return _collected(plan, say)


def _collected(plan: TrajectoriesPlan, say: Callable[[str], None]) -> dict[str, Any]:
    """Collect according to a checked plan."""
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
    progress = progress_lines(say, "answers with their states")
    return {
        "model": loaded.spec.name,
        "fingerprint": loaded.spec.fingerprint,
        "block_size": plan.block_size,
        "states_kind": plan.states,
        **({"prompts": describe_draw(plan.limit, plan.drawn_by)} if plan.limit is not None else {}),
        **collect(loaded, texts, sampling, how, plan.into, rows=most, progress=progress),
    }


def _refuse_of_answers(plan: TrajectoriesPlan) -> None:
    """Refuse options of generated answers where ``--answers`` alone is used, which generates none."""
    given = {
        "--limit": plan.limit,
        "--prompt-seed": plan.prompt_seed,
        "--max-new-tokens": plan.max_new_tokens,
        "--temperature": plan.temperature,
    }
    if flags := [flag for flag, value in given.items() if value is not None]:
        raise UsageError(
            f"cannot use {' and '.join(flags)} without --prompts: --answers alone takes the answers in its folder; add "
            f"--prompts or remove {' and '.join(flags)}"
        )


def _asked(plan: TrajectoriesPlan, loaded: LoadedModel, say: Callable[[str], None]) -> tuple[Sequence[Text], Sampling]:
    """Return the model's answers to training prompts, decoding missing ones, and the sampling settings."""
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
    """Return all answers of a folder, in the order in which they were finished, and their sampling settings."""
    from specbench.training.data.answers import read, sampling_of

    assert plan.answers is not None
    return read(plan.answers), sampling_of(plan.answers, loaded)
