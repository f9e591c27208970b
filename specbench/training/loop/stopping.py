"""Decide by evaluations on held-out texts when a training ends early, and which weights are kept.

transformers keeps the best checkpoint by one figure. Here the weights of the last evaluation that passes the rule are
kept; the rule compares with the untrained weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from specbench.common import NothingLearnt, UsageError, one_line
from specbench.training.loop import checkpoints
from specbench.training.recipe import WeightOptions

_LOOKED, _ENDED = "eval_", "eval_ended"  # an evaluation's entries in transformers' log


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of weights in training on held-out texts: figures, and a line to print."""

    figures: Mapping[str, Any]
    line: str


def logged(look: Evaluation, ended: str) -> dict[str, Any]:
    """Return an evaluation as transformers' log has it; ``ended`` is why it ends the training, or empty."""
    return {**{f"{_LOOKED}{name}": value for name, value in look.figures.items()}, **({_ENDED: ended} if ended else {})}


class Evaluations:
    """Evaluations of a training so far; the first one is of the untrained weights."""

    def __init__(self, log: Sequence[Mapping[str, Any]], tokens: Callable[[int], int]) -> None:
        self._rows = [row for row in log if any(name.startswith(_LOOKED) for name in row)]
        self._tokens = tokens

    @property
    def ended(self) -> str:
        """Why the last evaluation ended the training; empty if it did not."""
        return str(self._rows[-1].get(_ENDED, "")) if self._rows else ""

    def curve(self) -> list[dict[str, Any]]:
        """Return for each evaluation its ``step``, the ``tokens_seen`` until then, and its figures."""
        return [
            {
                "step": int(row["step"]),
                "tokens_seen": self._tokens(int(row["step"])),
                **{name.removeprefix(_LOOKED): value for name, value in row.items() if name.startswith(_LOOKED)},
            }
            for row in self._rows
        ]

    def best_step(self) -> int:
        """Return the step of the evaluation before the one that ended the training.

        Raises:
            NothingLearnt: that evaluation was of the untrained weights.
        """
        before, last = int(self._rows[-2]["step"]), int(self._rows[-1]["step"])
        if not before:
            raise NothingLearnt(
                f"cannot keep weights: the evaluation after {last} steps ended the training ({self.ended}), and the "
                "one before was of the untrained weights; train into another --out with a lower lr or eval_every"
            )
        return before


def stop_reason(options: WeightOptions, first: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return why a training should end at this evaluation; empty if it should continue.

    Repetitive text is easy to draft, so weights that write it seem fast: tokens per forward cannot be the rule.

    Args:
        first: figures of the untrained weights (:meth:`specbench.training.evaluation.held_out.Held.figures`).
        now: figures of this evaluation.
    """
    loops, before = now.get("loop_share"), first.get("loop_share")
    if options.max_loops is not None and loops is not None and loops - (before or 0.0) > options.max_loops:
        return f"{loops:.1%} of the tokens are in repetitive text, {before or 0.0:.1%} before training"
    # Repetitive answers have a high likelihood and are left out, or less repetition would count as a loss.
    name = "sound_log_likelihood_per_token"
    likely, target = now.get(name), first.get(name)
    if options.max_unlikely is None or likely is None or target is None:
        return ""
    if target - likely > options.max_unlikely * abs(target):
        return f"the log-likelihood of non-repetitive answers is {likely:.3f} per token, {target:.3f} before training"
    return ""


class BestCheckpoint:
    """Weights that a training returns to when an evaluation ends it.

    Those of the last two evaluations are kept: a training that is interrupted after an evaluation resumes from the
    checkpoint before it and evaluates again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, step: int, weights: Mapping[str, Tensor], before: int) -> None:
        """Write the weights of an evaluation; keep those of step ``before`` and delete all others."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._file(step)
        draft = file.with_name(f".{file.name}.tmp")
        try:
            save_file(dict(weights), draft, metadata={"format": "pt"})
            os.replace(draft, file)
        finally:
            draft.unlink(missing_ok=True)
        for other in self._folder.glob(self._file("*").name):
            if other not in (file, self._file(before)):
                other.unlink(missing_ok=True)

    def of(self, step: int, names: Collection[str]) -> dict[str, Tensor]:
        """Read the weights of the evaluation at a step."""
        file = self._file(step)
        try:
            found = load_file(file)
            if found.keys() != set(names):
                raise ValueError("it has other weights")
        except Exception as error:  # a damaged file may make the library raise any error
            last = checkpoints.last_whole(self._folder)
            todo = f"delete {last} and repeat the command" if last else "train again into another --out"
            reason = one_line(str(error), 120) or type(error).__name__
            raise UsageError(
                f"cannot return to the weights of the evaluation before: {file} cannot be read ({reason}); {todo}"
            ) from error
        return found

    def _file(self, step: int | str) -> Path:
        return self._folder / f"sound-{step}.safetensors"
