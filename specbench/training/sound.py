"""Sound weights: those of the last two looks that did not end a training, beside its checkpoints."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from specbench.common import UsageError
from specbench.common.errors import one_line
from specbench.training import checkpoints


class Sound:
    """Sound: what a training goes back to when a look ends it.

    Two are kept, because a training that is broken off behind a look and gone on with from the checkpoint before it
    comes to that look again, and may then be ended by it.

    Args:
        folder: of the checkpoints.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, step: int, weights: Mapping[str, Tensor], before: int) -> None:
        """Writes the weights of a look; those of the one ``before`` stay, and no others.

        Raises:
            OSError, SafetensorError: they cannot be written.
        """
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
        """The weights of a look.

        Args:
            step: at which it was.
            names: of all that is trained.

        Raises:
            UsageError: they are not there, damaged, or another model's.
        """
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
