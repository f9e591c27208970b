"""Checkpoints of a training: which of them are whole, and whether a folder's training is the one asked for."""

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
    """Says that a checkpoint has all its files; one without that is never gone on from."""
    write_json_atomic(folder / _WHOLE, {})


def last_whole(folder: Path) -> Path | None:
    """The last whole checkpoint in a folder; what a kill or a full disk has left of others is removed."""
    found = {}
    for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        step = path.name.rpartition("-")[2]
        if not step.isdecimal():  # somebody else's
            continue
        if (path / _WHOLE).exists():
            found[int(step)] = path
        else:
            shutil.rmtree(path, ignore_errors=True)
    return found[max(found)] if found else None


@contextmanager
def going_on(folder: Path) -> Iterator[None]:
    """Turns whatever a damaged file of a checkpoint makes a library raise into one sentence."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, SpecbenchError):
        raise
    except Exception as error:
        reason = one_line(str(error), 120) or type(error).__name__
        raise UsageError(f"{folder} is damaged ({reason}); delete it to go on from the checkpoint before it") from error


def claim(folder: Path, settings: Mapping[str, Any], what: str, later: Mapping[str, Any] | None = None) -> None:
    """Takes a folder for a training with these settings, which it has to have had from the start.

    Args:
        settings: all that decides what is learnt, as plain values.
        later: what a setting was before there was a choice, of those that an older folder does not have.

    Raises:
        UsageError: it holds a training with others.
    """
    path = folder / _OPTIONS
    if path.exists():
        theirs = {**(later or {}), **read_json_object(path, "give another --out")}
        other = sorted(name for name in settings if theirs.get(name) != settings[name])
        if other:
            raise UsageError(f"{folder} has {what} in training with another {', '.join(other)}; give another --out")
    check_writable(folder)
    write_json_atomic(path, settings)


def leave_weights(folder: Path, write: Callable[[Path], object]) -> None:
    """Leave finished weights in a folder that has its name once ``write`` has written everything.

    Raises:
        EnvironmentRefused: it cannot be written; what had the name before is not lost.
    """
    draft, before = folder.with_name(f".{folder.name}.tmp"), folder.with_name(f".{folder.name}.before")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        write(draft)
        if folder.exists():  # folders cannot be exchanged at once: a kill in between leaves both, by these names
            shutil.rmtree(before, ignore_errors=True)
            folder.rename(before)
        draft.rename(folder)
        shutil.rmtree(before, ignore_errors=True)
    except (OSError, SafetensorError, EnvironmentRefused) as error:
        shutil.rmtree(draft, ignore_errors=True)
        reason = " ".join(str(error).split())[:120]
        raise EnvironmentRefused(
            f"{folder} cannot be written ({reason}); make room and repeat the command: the last checkpoint is whole"
        ) from error
