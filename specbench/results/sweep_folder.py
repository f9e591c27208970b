"""Sweep folder: ``sweep.json``, which says what a sweep is made of, and the run folders beside it. No torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specbench.common import UsageError
from specbench.common.files import readable_schema

SWEEP = "sweep.json"

#: Of ``sweep.json``; its run folders have versions of their own.
SWEEP_SCHEMA = 1


def is_sweep(path: Path) -> bool:
    """Whether a folder is a sweep's."""
    return (path / SWEEP).is_file()


def read_head(path: Path) -> dict[str, Any]:
    """The content of a sweep folder's ``sweep.json``.

    Raises:
        UsageError: there is none, it is damaged, or it is of a newer version.
    """
    try:
        head = json.loads((path / SWEEP).read_bytes())
        version = head["schema_version"]
        for name, kind in {"cells": dict, "too_large": dict, "concurrency": list, "tuning": list}.items():
            if not isinstance(head[name], kind):
                raise TypeError(f"'{name}' is not a {kind.__name__}")
    except OSError as error:
        raise UsageError(f"{path} is no sweep ({error.strerror}); name a folder that specbench sweep wrote") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path / SWEEP} is damaged ({error}); delete it and repeat the sweep's command") from error
    readable_schema(version, SWEEP_SCHEMA, path / SWEEP)
    return dict(head)


def part_folder(path: Path, concurrency: int) -> Path:
    """The run folder of a sweep at one concurrency."""
    return path / f"c{concurrency}"


def part_folders(path: Path) -> Iterator[tuple[int, Path]]:
    """The run folders that a sweep has, by concurrency.

    Raises:
        UsageError: it has lost them all, or as :func:`read_head`.
    """
    counts = [count for count in read_head(path)["concurrency"] if part_folder(path, count).is_dir()]
    if not counts:
        raise UsageError(f"{path} has lost its runs (c1, …); repeat the sweep's command")
    yield from ((count, part_folder(path, count)) for count in counts)
