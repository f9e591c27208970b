"""``specbench train``: what a method drafts with, learnt from the target's own answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specbench.cli import common, output
from specbench.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from specbench.training.recipe import Job

_CARD = "card.json"


def train(
    method: str = typer.Argument(help="A method that has a recipe; see list methods.", metavar="METHOD"),
    prompts: str = typer.Option(
        ..., "--prompts", help="TASK-train or .jsonl files, comma-separated; test splits are refused.", metavar="SETS"
    ),
    model: str = common.MODEL,
    out: Path | None = typer.Option(
        None, "--out", help="Folder of this training; goes on there.", show_default="trained/METHOD-MODEL"
    ),
    settings: list[str] = typer.Option([], "--set", help="An option of the recipe; repeatable.", metavar="OPT=VALUE"),
    limit: int | None = typer.Option(None, "--limit", min=1, help="First N prompts of each set only."),
    held_out: int = typer.Option(64, "--held-out", min=0, help="Prompts that progress is measured on, not learnt."),
    max_new_tokens: int = typer.Option(512, "--max-new-tokens", min=2, help="Per answer of the target."),
    temperature: float = typer.Option(0.0, "--temperature", min=0.0, help="Of the target's answers; 0 is greedy."),
    concurrency: int = typer.Option(32, "--concurrency", min=1, help="Answers made together."),
    answers: Path | None = typer.Option(None, "--answers", help="Folder of answers made before.", file_okay=False),
    seed: int = typer.Option(0, "--seed", min=0, help="Of answers, initial weights and order."),
    dtype: str = common.DTYPE,
    device: str = common.DEVICE,
    revision: str | None = common.REVISION,
    data_dir: Path | None = common.DATA_DIR,
    as_json: bool = common.JSON,
) -> None:
    """Train what a method drafts with, on the model's own answers to training prompts.

    First the answers are made, then the recipe runs. Repeating an interrupted command goes on with both.
    """
    from specbench import registry
    from specbench.options import parse
    from specbench.training.prompts import check_sets

    card = registry.method(method)
    sets = common.split(prompts)
    if not sets:
        raise UsageError("--prompts names nothing; give gsm8k-train, for one")
    check_sets(sets)
    recipe = card.recipe()
    options = parse(recipe.Options, _assigned(settings), f"the recipe of {method}")
    into = out or Path("trained", f"{method}-{Path(model).name}")
    notes = output.stderr()
    notes.print(f"loading {model} …")
    from specbench.models import load

    loaded = load(model, dtype=dtype, device=device, revision=revision)
    job = _job(loaded, sets, into, answers or into, limit, held_out, max_new_tokens, temperature, concurrency, seed,
               data_dir, notes)  # fmt: skip
    made = {
        "method": method,
        "model": loaded.spec.name,
        "fingerprint": loaded.spec.fingerprint,
        "prompts": sets,
        "answers": {"max_new_tokens": max_new_tokens, "temperature": temperature},
        "seed": seed,
        "options": options.model_dump(mode="json"),
        **recipe.train(options, job),
    }
    from specbench.storage import write_json_atomic

    write_json_atomic(into / _CARD, made)
    if as_json:
        output.emit_json({"folder": str(into), **made})
        return
    rows = [[name.replace("_", " "), _shown(value)] for name, value in made.items() if name != "options"]
    output.stdout().print(output.table(["", "trained"], rows))
    notes.print(f"trained: {into}", soft_wrap=True, markup=False)


def _job(
    loaded: Any,
    sets: list[str],
    into: Path,
    folder: Path,
    limit: int | None,
    held_out: int,
    max_new_tokens: int,
    temperature: float,
    concurrency: int,
    seed: int,
    data_dir: Path | None,
    notes: Console,
) -> Job:
    """Asks the model, and sets aside what it will not learn from."""
    from specbench.training.answers import Asking, ask
    from specbench.training.prompts import training_prompts
    from specbench.training.recipe import Job, apart

    asked = [prompt for name in sets for prompt in training_prompts([name], loaded.has_chat_template, data_dir)[:limit]]
    if held_out >= len(asked):
        raise UsageError(f"--held-out {held_out} leaves none of {len(asked)} prompts to learn from; lower it")
    asking = Asking(max_new_tokens, concurrency, temperature, seed)
    texts = ask(loaded, asked, asking, folder, _tenths(lambda line: notes.print(line, markup=False)))
    learnt, aside = apart(texts, held_out, seed)
    return Job(loaded, learnt, aside, into, seed, lambda line: notes.print(line, soft_wrap=True, markup=False))


def _assigned(settings: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for setting in settings:
        name, sign, value = setting.partition("=")
        if not sign or not name:
            raise UsageError(f"--set {setting} is not NAME=VALUE; write --set lr=0.001, for one")
        if name in found:
            raise UsageError(f"--set {name} is given twice; keep one")
        found[name] = value
    return found


def _tenths(say: Callable[[str], None]) -> Callable[[int, int], None]:
    """Says how many answers are there, at every tenth of them."""
    said = -1

    def told(done: int, total: int) -> None:
        nonlocal said
        tenth = 10 * done // total
        if tenth > said:
            said = tenth
            say(f"{done}/{total} answers")

    return told


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {inner}" for name, inner in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value)
