"""``specbench trajectories``: Jacobi states of the target's own answers, what consistency training learns from."""

from __future__ import annotations

from typing import Any

from specbench.cli import options, output
from specbench.training.training_plan import TrajectoriesPlan


@options.takes(
    TrajectoriesPlan, shown=("prompts", "model", "out", "answers", "block_size", "states", "init", "augment", "limit")
)
def trajectories(plan: TrajectoriesPlan, as_json: bool = options.JSON) -> None:
    """Collect Jacobi states of the model's own answers to training prompts.

    First the answers are made, then the states of all their blocks, many in one forward. Repeating an interrupted
    command goes on with both.
    """
    from specbench.runner.progress import notes_of, noting
    from specbench.training.running import run_collection

    say = noting(notes_of(plan))
    found = run_collection(plan, say)
    if as_json:
        output.emit_json({"folder": str(plan.into), **found})
        return
    listed = [[name.replace("_", " "), _shown(value)] for name, value in found.items() if name != "fingerprint"]
    output.stdout().print(output.table(["", "trajectories"], listed))
    say(f"trajectories: {plan.into}")


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
