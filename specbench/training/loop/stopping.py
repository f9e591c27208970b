"""When a training ends early and which weights it keeps: evaluations on held-out texts, and the stopping rule.

transformers keeps the best checkpoint by one figure; here the last sound one counts, compared with untrained weights.
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

_LOOKED, _ENDED = "eval_", "eval_ended"  # of a look in transformers' log


@dataclass(frozen=True)
class Look:
    """What held-out texts say of weights in training."""

    figures: Mapping[str, Any]
    line: str


def logged(look: Look, ended: str) -> dict[str, Any]:
    """A look as transformers' log has it, with why the training ends here; empty where it goes on."""
    return {**{f"{_LOOKED}{name}": value for name, value in look.figures.items()}, **({_ENDED: ended} if ended else {})}


class Looks:
    """Those of a training so far, the untrained weights' first."""

    def __init__(self, log: Sequence[Mapping[str, Any]], tokens: Callable[[int], int]) -> None:
        self._rows = [row for row in log if any(name.startswith(_LOOKED) for name in row)]
        self._tokens = tokens

    @property
    def ended(self) -> str:
        """Why the last one ended the training; empty where it did not."""
        return str(self._rows[-1].get(_ENDED, "")) if self._rows else ""

    def curve(self) -> list[dict[str, Any]]:
        """Of each look its ``step``, the ``tokens_seen`` until then, and its figures."""
        return [
            {
                "step": int(row["step"]),
                "tokens_seen": self._tokens(int(row["step"])),
                **{name.removeprefix(_LOOKED): value for name, value in row.items() if name.startswith(_LOOKED)},
            }
            for row in self._rows
        ]

    def last_sound_step(self) -> int:
        """Steps at the look before the one that ended the training.

        Raises:
            NothingLearnt: that is the untrained weights'.
        """
        before, last = int(self._rows[-2]["step"]), int(self._rows[-1]["step"])
        if not before:
            raise NothingLearnt(
                f"after {last} steps {self.ended}, and no look before was at trained weights; train anew, into another "
                "--out, with a lower lr, or a lower eval_every"
            )
        return before


def unsound(options: WeightOptions, first: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Why a training ends at a look; empty where it goes on.

    A loop is easy to draft, so weights that loop look fast: tokens per forward cannot be what tells when to end.

    Args:
        first: figures of the untrained weights' look (:meth:`specbench.training.evaluation.held_out.Held.figures`).
    """
    loops, before = now.get("loop_share"), first.get("loop_share")
    if options.max_loops is not None and loops is not None and loops - (before or 0.0) > options.max_loops:
        return f"{loops:.1%} of the tokens are in closing loops, {before or 0.0:.1%} before training"
    name = "sound_log_likelihood_per_token"  # a loop is likely, and a model that stops looping no worse for it
    likely, target = now.get(name), first.get(name)
    if options.max_unlikely is None or likely is None or target is None:
        return ""
    if target - likely > options.max_unlikely * abs(target):
        return f"the log-likelihood of answers that do not loop is {likely:.3f} a token, {target:.3f} before training"
    return ""


class Sound:
    """The weights that a training goes back to when an evaluation ends it.

    Two are kept: a training that is interrupted after an evaluation resumes from the checkpoint before it and evaluates
    again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, step: int, weights: Mapping[str, Tensor], before: int) -> None:
        """Writes the weights of a look; those of the one ``before`` stay, and no others."""
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
        """The weights of a look."""
        file = self._file(step)
        try:
            found = load_file(file)
            if found.keys() != set(names):
                raise ValueError("it has other weights")
        except Exception as error:  # whatever a damaged file makes the library raise
            last = checkpoints.last_whole(self._folder)
            todo = f"delete {last} and repeat the command" if last else "train anew, into another --out"
            reason = one_line(str(error), 120) or type(error).__name__
            raise UsageError(f"{file}, to which this training goes back, cannot be read ({reason}); {todo}") from error
        return found

    def _file(self, step: int | str) -> Path:
        return self._folder / f"sound-{step}.safetensors"
