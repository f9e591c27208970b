"""Looks at held-out texts while weights learn: their curve over the tokens seen, and the one that ends a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.common.errors import NothingLearnt

_LOOKED, _ENDED = "eval_", "eval_ended"  # of a look in transformers' log


@dataclass(frozen=True)
class Look:
    """What held-out texts say of weights in training.

    Attributes:
        figures: plain values by name, for the record.
        line: the same for the user.
    """

    figures: Mapping[str, Any]
    line: str


def logged(look: Look, ended: str) -> dict[str, Any]:
    """A look as transformers' log has it, with why the training ends here; empty where it goes on."""
    return {**{f"{_LOOKED}{name}": value for name, value in look.figures.items()}, **({_ENDED: ended} if ended else {})}


class Looks:
    """Looks: those of a training so far, the untrained weights' first.

    Args:
        log: transformers' log, which checkpoints keep.
        tokens: (steps) -> tokens that they bring through the model.
    """

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
