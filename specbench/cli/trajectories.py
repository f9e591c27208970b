"""``specbench trajectories``: Jacobi states of the target's own answers, what consistency training learns from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specbench.cli import options, output
from specbench.common import UsageError
from specbench.common.errors import unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from specbench.engine import Sampling
    from specbench.models import LoadedModel
    from specbench.training.answers import Asking
    from specbench.training.recipe import Text


_BUDGET = 512
_ROWS = {"cpu": 256, "cuda": 4096}  # where a forward of a small model costs no less per row with more of them
_STATES, _INIT, _AUGMENT = ("jacobi", "artificial"), ("context", "uniform", "pad"), ("none", "cllm", "cllm-released")


def trajectories(
    prompts: str | None = typer.Option(
        None,
        "--prompts",
        help="TASK-train or .jsonl files, comma-separated.",
        metavar="SETS",
        show_default="all of --answers",
    ),
    model: str = options.MODEL,
    out: Path | None = typer.Option(
        None, "--out", help="Folder of trajectories; goes on there.", show_default="trajectories/MODEL"
    ),
    answers: Path | None = typer.Option(
        None, "--answers", help="Folder of answers; missing ones are made.", file_okay=False, show_default="--out"
    ),
    block_size: int = typer.Option(16, "--block-size", "-n", min=1, max=512, help="Tokens of a block."),
    states: str = typer.Option("jacobi", "--states", help="jacobi runs the target; artificial is noise alone."),
    init: str = typer.Option("context", "--init", help="Fresh guesses: context, uniform or pad."),
    augment: str = typer.Option("none", "--augment", help="Right tokens put into states: none, cllm, cllm-released."),
    keep_circles: int = typer.Option(3, "--keep-circles", min=0, help="Rounds kept of a circle at the end; 0 is all."),
    max_run: int = typer.Option(0, "--max-run", min=0, help="No block from a run of N equal tokens on; CLLM has 10."),
    limit: int | None = typer.Option(None, "--limit", min=1, help="N prompts of each set, drawn by lot."),
    prompt_seed: int | None = options.PROMPT_SEED,
    first: bool = options.FIRST,
    max_new_tokens: int | None = typer.Option(
        None, "--max-new-tokens", min=2, help="Per answer of the target.", show_default=str(_BUDGET)
    ),
    temperature: float | None = typer.Option(
        None, "--temperature", min=0.0, help="Of the target's answers; 0 is greedy.", show_default="0"
    ),
    concurrency: int = typer.Option(32, "--concurrency", min=1, help="Answers made together."),
    seed: int = typer.Option(0, "--seed", min=0, help="Of answers and noise."),
    shard: int = typer.Option(64, "--shard", min=1, help="Answers of a shard: what a kill can lose."),
    rows: int | None = typer.Option(
        None, "--rows", min=1, help="Of a forward; bounds memory.", show_default="256; 4096 on CUDA"
    ),
    dtype: str = options.DTYPE,
    device: str = options.DEVICE,
    revision: str | None = options.REVISION,
    trust_remote_code: bool = options.TRUST_REMOTE_CODE,
    data_dir: Path | None = options.DATA_DIR,
    as_json: bool = options.JSON,
) -> None:
    """Collect Jacobi states of the model's own answers to training prompts.

    First the answers are made, then the states of all their blocks, many in one forward. Repeating an interrupted
    command goes on with both.
    """
    from specbench.training.prompts import check_sets

    for flag, value, known in (
        ("--states", states, _STATES),
        ("--init", init, _INIT),
        ("--augment", augment, _AUGMENT),
    ):
        if value not in known:
            raise unknown(f"value of {flag}", value, known)
    if max_run == 1:
        raise UsageError("--max-run 1 leaves nothing: every token is a run of 1; give 2 or more, or 0 for off")
    sets = options.split(prompts or "")
    if not sets and (prompts is not None or answers is None):
        raise UsageError("--prompts names nothing; give gsm8k-train, for one, or --answers alone for all in a folder")
    check_sets(sets)
    if not sets:
        _refuse_of_answers(limit, prompt_seed, max_new_tokens, temperature)
    drawn_by = options.drawn_by(limit, prompt_seed, first)
    from specbench.runner.plan import plan_sampling

    heat = plan_sampling(temperature or 0.0, 0, 1.0, seed).temperature
    from specbench.common.files import check_writable

    into = out or Path("trajectories", Path(model).name)
    notes = output.stderr()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # nothing is timed: threads need not spin while they wait
    check_writable(into)
    notes.print(f"loading {model} …")
    from specbench.cli.progress import counting
    from specbench.evals.draw import said
    from specbench.models import load
    from specbench.training import collect
    from specbench.training.answers import Asking
    from specbench.training.collection import Collecting

    loaded = load(model, dtype=dtype, device=device, revision=revision, trust_remote_code=trust_remote_code)
    if sets:
        asking = Asking(max_new_tokens or _BUDGET, concurrency, heat, seed)
        texts, sampling = _asked(loaded, sets, answers or into, (limit, drawn_by), asking, data_dir, notes)
    else:
        assert answers is not None
        texts, sampling = _given(loaded, answers)
    how = Collecting(block_size, states, init, augment, keep_circles, max_run, seed, shard)  # type: ignore[arg-type]
    most = rows or _ROWS[loaded.model.device.type]
    found = {
        "model": loaded.spec.name,
        "fingerprint": loaded.spec.fingerprint,
        "block_size": block_size,
        "states_kind": states,
        **({"prompts": said(limit, drawn_by)} if limit is not None else {}),
        **collect(loaded, texts, sampling, how, into, rows=most, told=counting(notes, "answers with their states")),
    }
    if as_json:
        output.emit_json({"folder": str(into), **found})
        return
    listed = [[name.replace("_", " "), _shown(value)] for name, value in found.items() if name != "fingerprint"]
    output.stdout().print(output.table(["", "trajectories"], listed))
    notes.print(f"trajectories: {into}", soft_wrap=True, markup=False)


def _refuse_of_answers(
    limit: int | None, prompt_seed: int | None, max_new_tokens: int | None, temperature: float | None
) -> None:
    """What says how answers are made is no use where all of them are."""
    given = {
        "--limit": limit,
        "--prompt-seed": prompt_seed,
        "--max-new-tokens": max_new_tokens,
        "--temperature": temperature,
    }
    if flags := [flag for flag, value in given.items() if value is not None]:
        raise UsageError(f"{' and '.join(flags)} goes with --prompts: --answers alone takes what is there")


def _asked(
    loaded: LoadedModel,
    sets: list[str],
    folder: Path,
    drawn: tuple[int | None, int | None],
    asking: Asking,
    data_dir: Path | None,
    notes: Console,
) -> tuple[Sequence[Text], Sampling]:
    """The model's answers to training prompts, made where they are missing, and how they were decoded.

    Args:
        drawn: ``limit`` and ``seed`` of :func:`specbench.evals.draw.draw`, of each set.
    """
    from specbench.cli.progress import counting
    from specbench.engine import Sampling
    from specbench.evals.draw import draw
    from specbench.training.answers import ask
    from specbench.training.prompts import training_prompts

    chat = loaded.has_chat_template
    asked = [prompt for name in sets for prompt in draw(training_prompts([name], chat, data_dir), *drawn)]
    texts = ask(loaded, asked, asking, folder, counting(notes, "answers"))
    return texts, Sampling(temperature=asking.temperature, seed=asking.seed)


def _given(loaded: LoadedModel, folder: Path) -> tuple[Sequence[Text], Sampling]:
    """All answers of a folder, in the order in which they were finished, and how they were decoded."""
    from specbench.training.answers import read, sampling_of

    return read(folder), sampling_of(folder, loaded)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
