"""``specbench train``: what a method drafts with, learnt from the target's own answers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specbench.cli import options, output
from specbench.common import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from specbench.training import Job
    from specbench.training.answers import Asking
    from specbench.training.sources import Wanted


def train(
    method: str = typer.Argument(help="A method that has a recipe; see list methods.", metavar="METHOD"),
    prompts: str | None = typer.Option(
        None,
        "--prompts",
        help="TASK-train or .jsonl files, comma-separated; test splits are refused.",
        metavar="SETS",
        show_default="all of --answers or --trajectories",
    ),
    answers: Path | None = typer.Option(
        None, "--answers", help="Folder of answers; missing ones are made.", file_okay=False, show_default="--out"
    ),
    trajectories: Path | None = typer.Option(
        None, "--trajectories", help="Folder of specbench trajectories, for consistency.", file_okay=False
    ),
    model: str = options.MODEL,
    out: Path | None = typer.Option(
        None, "--out", help="Folder of this training; goes on there.", show_default="trained/METHOD-MODEL"
    ),
    recipe: str | None = typer.Option(
        None, "--recipe", help="A paper's options by name, or a .yaml file; a wrong name lists them."
    ),
    settings: list[str] = typer.Option([], "--set", help="An option of the recipe; repeatable.", metavar="OPT=VALUE"),
    limit: int | None = typer.Option(None, "--limit", min=1, help="N texts of each set, drawn by lot."),
    prompt_seed: int | None = options.PROMPT_SEED,
    first: bool = options.FIRST,
    held_out: int = typer.Option(64, "--held-out", min=0, help="Prompts that progress is measured on, not learnt."),
    max_new_tokens: int = typer.Option(512, "--max-new-tokens", min=2, help="Per answer of the target."),
    temperature: float = typer.Option(0.0, "--temperature", min=0.0, help="Of the target's answers; 0 is greedy."),
    concurrency: int = typer.Option(32, "--concurrency", min=1, help="Answers made together."),
    seed: int = typer.Option(0, "--seed", min=0, help="Of answers, initial weights and order."),
    dtype: str = options.DTYPE,
    device: str = options.DEVICE,
    revision: str | None = options.REVISION,
    trust_remote_code: bool = options.TRUST_REMOTE_CODE,
    data_dir: Path | None = options.DATA_DIR,
    as_json: bool = options.JSON,
) -> None:
    """Train what a method drafts with, on the model's own answers to training prompts.

    First the answers are made, then the recipe runs. Repeating an interrupted command goes on with both.
    """
    from specbench.common import guests, registry
    from specbench.runner.plan import plan_sampling
    from specbench.training.choose import choose
    from specbench.training.prompts import check_sets

    card = registry.method(method)
    sets = options.split(prompts or "")
    if prompts is not None and not sets:
        raise UsageError("--prompts names nothing; give gsm8k-train, for one")
    check_sets(sets)
    drawn_by = options.drawn_by(limit, prompt_seed, first)
    plan_sampling(temperature, 0, 1.0, seed)
    # Nothing is timed, so threads need not spin while they wait. Read when torch is loaded, which recipes do.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    module = card.recipe()
    with guests.hosting(card.who):
        chosen = choose(card, module.Options, recipe, settings)
    _check_source(method, module, sets, answers, trajectories)
    from specbench.common.files import check_writable, write_json_atomic

    into = out or Path("trained", f"{method}-{Path(model).name}")
    notes = output.stderr()
    check_writable(into)
    notes.print(f"loading {model} …")
    from specbench.models import CARD, load
    from specbench.training.answers import Asking
    from specbench.training.sources import Wanted

    loaded = load(model, dtype=dtype, device=device, revision=revision, trust_remote_code=trust_remote_code)
    job = _job(
        model, loaded, Wanted(sets, answers, trajectories, limit, data_dir, drawn_by),
        Asking(max_new_tokens, concurrency, temperature, seed), into, held_out, notes,
    )  # fmt: skip
    with guests.hosting(card.who):
        learnt = module.train(chosen, job)
    made = {
        "method": method,
        "model": loaded.spec.name,
        "fingerprint": loaded.spec.fingerprint,
        **job.about,
        "seed": seed,
        "options": chosen.model_dump(mode="json"),
        **learnt,
    }
    write_json_atomic(into / CARD, made)
    if as_json:
        output.emit_json({"folder": str(into), **made})
        return
    hidden = ("options", "base_fingerprints")
    rows = [[name.replace("_", " "), _shown(value)] for name, value in made.items() if name not in hidden]
    output.stdout().print(output.table(["", "trained"], rows))
    notes.print(f"trained: {made.get('weights', into)}", soft_wrap=True, markup=False)


def _check_source(method: str, module: Any, sets: list[str], answers: Path | None, trajectories: Path | None) -> None:
    """One source of texts, and the one that the recipe learns from."""
    if getattr(module, "TRAJECTORIES", False):
        if trajectories is None:
            raise UsageError(
                f"{method} learns from trajectories; make them with specbench trajectories and name their folder with "
                "--trajectories"
            )
    elif not (sets or answers or trajectories):
        raise UsageError("nothing to learn from; give --prompts gsm8k-train, for one, or --answers FOLDER")
    if answers is not None and trajectories is not None:
        raise UsageError("--trajectories have their answers with them; leave --answers out")


def _job(model: str, loaded: Any, wanted: Wanted, asking: Asking, into: Path, held_out: int, notes: Console) -> Job:
    """Finds or asks the texts, and sets aside what is not learnt from."""
    from specbench.cli.progress import counting
    from specbench.training import Job
    from specbench.training.recipe import apart
    from specbench.training.sources import find

    found = find(loaded, wanted, asking, into, counting(notes, "answers"))
    if held_out >= len(found.texts):
        raise UsageError(f"--held-out {held_out} leaves none of {len(found.texts)} prompts to learn from; lower it")
    learnt, aside = apart(found.texts, held_out, asking.seed)
    # A folder is found from wherever the adapter is loaded; a name stays one.
    named = str(Path(model).expanduser().resolve()) if Path(model).expanduser().exists() else model

    def say(line: str) -> None:
        notes.print(line, soft_wrap=True, markup=False, highlight=False)

    return Job(loaded, learnt, aside, into, asking.seed, say, named, found.about, found.score)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {inner}" for name, inner in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value)
