"""``specbench train``: train heads, draft models or adapters; with ``--collect``, only collect Jacobi states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from specbench.cli import options, output
from specbench.common import Flags, UsageError, flag, flag_of
from specbench.training import TrainPlan, TrajectoriesPlan

P = TypeVar("P", bound=Flags)

_HIDDEN = ("options", "base_fingerprints")
_SHARED = TrainPlan.model_fields.keys() & TrajectoriesPlan.model_fields.keys()


class _TrainCommand(TrainPlan, TrajectoriesPlan):
    """The options of a training and of a collection."""

    method: str | None = flag(None, "METHOD", help=str(TrainPlan.model_fields["method"].description))  # type: ignore[assignment]
    collect: bool = flag(
        False, "--collect", help="Only collect trajectories (Jacobi states of the model's own answers) in --out."
    )

    def narrowed(self, to: type[P], other: type[Flags]) -> P:
        """The options of one of the two; options of the other are refused."""
        for name in sorted(self.model_fields_set & (other.model_fields.keys() - _SHARED)):
            how = "cannot be used with" if self.collect else "goes with"
            raise UsageError(f"{flag_of(_TrainCommand, name).name} {how} --collect; leave one of them out")
        return to.model_validate({name: getattr(self, name) for name in to.model_fields})


@options.takes(
    _TrainCommand,
    shown=(
        "method", "prompts", "answers", "trajectories", "model", "out", "recipe", "settings", "limit", "held_out",
        "collect", "block_size", "states",
    ),
)  # fmt: skip
def train(plan: _TrainCommand, as_json: bool = options.JSON) -> None:
    """Train a draft head, draft model or adapter on the model's own answers to training prompts.

    First the answers are generated, then the recipe runs; with --collect, Jacobi
    states are collected instead. Repeating an interrupted command continues it.
    specbench train METHOD; --set OPTION=VALUE sets options of its recipe, which
    specbench list METHOD --training lists.
    """
    from specbench.runner import notes_of, printing_to
    from specbench.training import run_collection, run_training

    say = printing_to(notes_of(plan))
    if plan.collect:
        collecting = plan.narrowed(TrajectoriesPlan, TrainPlan)
        found, into, title = run_collection(collecting, say), collecting.into, "trajectories"
    elif plan.method is None:
        raise UsageError("name a method that has a recipe, as in specbench train jf, or add --collect")
    else:
        training = plan.narrowed(TrainPlan, TrajectoriesPlan)
        found, into, title = run_training(training, say), training.into, "trained"
    if as_json:
        output.emit_json({"folder": str(into), **found})
        return
    hidden = ("fingerprint",) if plan.collect else _HIDDEN
    rows = [[name.replace("_", " "), _shown(value)] for name, value in found.items() if name not in hidden]
    output.stdout().print(output.table(["", title], rows))
    say(f"{title}: {into if plan.collect else found.get('weights', into)}")


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {inner}" for name, inner in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:.2f}" if isinstance(value, float) else str(value)
