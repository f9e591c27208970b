"""Find complete checkpoints to resume from, and make sure that a folder holds only one training."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from specbench.common import (
    EnvironmentRefused,
    SpecbenchError,
    UsageError,
    check_writable,
    one_line,
    read_json_object,
    write_json_atomic,
)

_WHOLE = "whole.json"  # written last
_OPTIONS = "options.json"


def mark_whole(folder: Path) -> None:
    """Mark a checkpoint as complete; a training never resumes from an unmarked one."""
    write_json_atomic(folder / _WHOLE, {})


def last_whole(folder: Path) -> Path | None:
    """Return the last complete checkpoint in a folder, and remove incomplete ones."""
    found = {}
    for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        step = path.name.rpartition("-")[2]
        if not step.isdecimal():  # not a checkpoint of ours
            continue
        if (path / _WHOLE).exists():
            found[int(step)] = path
        else:
            shutil.rmtree(path, ignore_errors=True)
    return found[max(found)] if found else None


@contextmanager
def going_on(folder: Path) -> Iterator[None]:
    """Turn any error that a library raises for a damaged checkpoint file into a UsageError."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, SpecbenchError):
        raise
    except Exception as error:
        reason = one_line(str(error), 120) or type(error).__name__
        raise UsageError(
            f"cannot resume from {folder}: it is damaged ({reason}); delete it to resume from the checkpoint before it"
        ) from error


def claim(folder: Path, settings: Mapping[str, Any], what: str, later: Mapping[str, Any] | None = None) -> None:
    """Reserve a folder for a training with these settings.

    Args:
        settings: all settings that affect the trained weights, as plain values.
        what: name of the training for the error message.
        later: defaults of settings that folders of older versions lack.

    Raises:
        UsageError: the folder holds a training with other settings.
    """
    path = folder / _OPTIONS
    if path.exists():
        theirs = {**(later or {}), **read_json_object(path, "give another --out")}
        other = sorted(name for name in settings if theirs.get(name) != settings[name])
        if other:
            raise UsageError(
                f"cannot train {what} in {folder}: a training there differs in {', '.join(other)}; give another --out"
            )
    check_writable(folder)
    write_json_atomic(path, settings)


def leave_weights(folder: Path, write: Callable[[Path], object]) -> None:
    """Write finished weights atomically: the folder gets its name once ``write`` has written everything.

    Raises:
        EnvironmentRefused: the folder cannot be written; an older folder of this name is not lost.
    """
    draft, before = folder.with_name(f".{folder.name}.tmp"), folder.with_name(f".{folder.name}.before")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        write(draft)
        if folder.exists():  # two folders cannot be swapped atomically: a kill in between leaves draft and before
            shutil.rmtree(before, ignore_errors=True)
            folder.rename(before)
        draft.rename(folder)
        shutil.rmtree(before, ignore_errors=True)
    except (OSError, SafetensorError, EnvironmentRefused) as error:
        shutil.rmtree(draft, ignore_errors=True)
        reason = " ".join(str(error).split())[:120]
        raise EnvironmentRefused(
            f"cannot write {folder}: {reason}; free disk space and repeat the command: the last checkpoint is complete"
        ) from error
