"""``specbench train``: what a method drafts with, learnt from the target's own answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specbench.cli import options, output
from specbench.training.training_plan import TrainPlan

_HIDDEN = ("options", "base_fingerprints")


@options.takes(
    TrainPlan,
    shown=("method", "prompts", "answers", "trajectories", "model", "out", "recipe", "settings", "limit", "held_out"),
)
def train(plan: TrainPlan, as_json: bool = options.JSON) -> None:
    """Train what a method drafts with, on the model's own answers to training prompts.

    First the answers are made, then the recipe runs. Repeating an interrupted command goes on with both.
    """
    from specbench.runner.progress import notes_of, noting
    from specbench.training.running import run_training

    say = noting(notes_of(plan))
    made = run_training(plan, say)
    if as_json:
        output.emit_json({"folder": str(plan.into), **made})
        return
    rows = [[name.replace("_", " "), _shown(value)] for name, value in made.items() if name not in _HIDDEN]
    output.stdout().print(output.table(["", "trained"], rows))
    say(f"trained: {made.get('weights', plan.into)}")


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {inner}" for name, inner in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value)
