"""Checkpoints of a training: which of them are whole, and whether a folder's training is the one asked for."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from specbench.common import UsageError
from specbench.common.files import check_writable, read_json_object, write_json_atomic

_WHOLE = "whole.json"  # written last
_OPTIONS = "options.json"


def mark_whole(folder: Path) -> None:
    """Says that a checkpoint has all its files; one without that is never gone on from."""
    write_json_atomic(folder / _WHOLE, {})


def last_whole(folder: Path) -> Path | None:
    """The last whole checkpoint in a folder; what a kill or a full disk has left of others is removed."""
    found = {}
    for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        if (path / _WHOLE).exists():
            found[int(path.name.rpartition("-")[2])] = path
        else:
            shutil.rmtree(path, ignore_errors=True)
    return found[max(found)] if found else None


def claim(folder: Path, settings: Mapping[str, Any], what: str) -> None:
    """Takes a folder for a training with these settings, which it has to have had from the start.

    Args:
        folder: of the training; made where it is missing.
        settings: all that decides what is learnt, as plain values.
        what: is in training, for the error.

    Raises:
        UsageError: it holds a training with others.
        EnvironmentRefused: the disk is full.
    """
    path = folder / _OPTIONS
    if path.exists():
        theirs = read_json_object(path, "give another --out")
        other = sorted(name for name in settings if theirs.get(name) != settings[name])
        if other:
            raise UsageError(f"{folder} has {what} in training with another {', '.join(other)}; give another --out")
    check_writable(folder)
    write_json_atomic(path, settings)
