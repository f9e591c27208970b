"""``specbench tune``: which options of a method are best here, in a sentence with its evidence."""

from __future__ import annotations

from specbench.cli import options, output
from specbench.cli.sweep import refuse_failed, write_cells
from specbench.sweeps import TunePlan


@options.takes(
    TunePlan,
    shown=("method", "task", "model", "grid", "limit", "held_out", "max_new_tokens", "settings", "out"),
    without=("search", "until_ci", "profile", "executor", "workers", "yes", "no_score", "simulate"),
)
def tune(plan: TunePlan, as_json: bool = options.JSON) -> None:
    """Find the best options of a method for this model, task and device.

    A sweep by successive halving over the options that matter; the winner is judged on other prompts.
    """
    from specbench.report import sweep_advice
    from specbench.sweeps import read_sweep, run_tuning

    path, curve = run_tuning(plan)
    read = read_sweep(path)
    write_cells(read)
    found = sweep_advice(next(iter(read.runs.values())).run, read.cells, curve, plan.method)
    if as_json:
        output.emit_json({"folder": str(path), **found})
        refuse_failed(read.cells)
        return
    console = output.stdout()
    for line in found["said"]:
        console.print(line, markup=False)
    console.print(f"\nsweep: {path} (specbench show has every setting)", soft_wrap=True)
    refuse_failed(read.cells)
