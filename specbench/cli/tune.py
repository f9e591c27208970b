"""``specbench tune``: which options of a method are best here, in a sentence with its evidence."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer

from specbench.cli import options, output
from specbench.cli.sweep import make, plan_arguments, worker, write_cells
from specbench.common import UsageError


def tune(
    method: str = typer.Option(..., "--method", help="The method.", show_default=False),
    task: str = typer.Option(options.DEFAULT_TASK, "--task", help="The task."),
    model: str = options.MODEL,
    gpu: str = typer.Option("auto", "--gpu", help="Refuse to run on any other GPU; see list gpus."),
    grid: list[str] = typer.Option(
        [], "--grid", help="What to try, as for sweep; instead of the method's own list.", metavar="OPT=VALUES"
    ),
    limit: int = typer.Option(16, "--limit", min=1, help="Prompts to choose by, drawn by lot."),
    prompt_seed: int | None = options.PROMPT_SEED,
    first: bool = options.FIRST,
    held_out: int = typer.Option(16, "--held-out", min=1, help="Other prompts, to judge the choice by."),
    max_new_tokens: int | None = options.BUDGET,
    seed: int = options.SEED,
    settings: list[str] = options.SET,
    head: str | None = options.HEAD,
    task_settings: list[str] = options.TASK_SET,
    dtype: str = options.DTYPE,
    device: str = options.DEVICE,
    attention: str = options.ATTENTION,
    graphs: str = options.GRAPHS,
    compile: bool = options.COMPILE,
    revision: str | None = options.REVISION,
    trust_remote_code: bool = options.TRUST_REMOTE_CODE,
    data_dir: Path | None = options.DATA_DIR,
    data_file: Path | None = options.DATA_FILE,
    out: Path = typer.Option(options.RESULTS, "--out", help="Folder that receives the sweep's folder."),
    as_json: bool = options.JSON,
) -> None:
    """Find the best options of a method for this model, task and device.

    A sweep by successive halving over the options that matter; the winner is judged on other prompts.
    """
    arguments = plan_arguments(locals())
    from specbench.report.terminal.sweep import advice
    from specbench.sweeps import Sweep, drive, read_sweep
    from specbench.sweeps.executors import Here
    from specbench.sweeps.grid import read_axes

    options.assert_gpu(gpu)
    if "," in method or "," in task:
        raise UsageError("tune takes one method and one task; run it once for each")
    axes = read_axes(grid or _own(method, settings))
    plan, cells = make(axes, arguments, insist=False)
    notes = output.stderr()
    for line in plan.said:
        notes.print(line, soft_wrap=True, markup=False)
    from specbench.cli.progress import SweepProgress

    notes.print(f"{len(cells.cells)} settings; loading …")
    made = partial(worker, axes, arguments, held_out)()
    running = Here(lambda: made)
    try:
        curve = made.step_seconds()
        with SweepProgress(notes) as progress:
            path = drive(Sweep(cells, out, "halving", None, data_dir, score=False), running, progress)
    finally:
        running.close()
    read = read_sweep(path)
    write_cells(read)
    found = advice(next(iter(read.runs.values())).run, read.cells, curve, method)
    if as_json:
        output.emit_json({"folder": str(path), **found})
        return
    console = output.stdout()
    for line in found["said"]:
        console.print(line, markup=False)
    console.print(f"\nsweep: {path} (specbench show has every setting)", soft_wrap=True)


def _own(method: str, settings: list[str]) -> list[str]:
    """The method's list of what to try, without what the user has set."""
    from specbench.common import registry
    from specbench.common.options import names

    card = registry.method(method)
    lists = card.info.get("tune", {})
    if not lists:
        raise UsageError(f"method '{method}' has no list of what to try; say it with --grid OPTION=V,V,…")
    known = names(card.load().Options)
    taken = {known.get(setting.partition("=")[0].rpartition(".")[2].replace("-", "_")) for setting in settings}
    return [f"{option}={','.join(map(str, values))}" for option, values in lists.items() if option not in taken]
