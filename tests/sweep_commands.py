"""Sweep commands with a toy worker in this process, which may break off, and what they leave on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sweep_workers import ToyWorker, grid

from specbench.results.folder import RunFolder
from specbench.results.schema import RequestRecord
from specbench.sweeps.driver import Asked, Silent, drive
from specbench.sweeps.executors import Here
from specbench.sweeps.search import Kind
from specbench.sweeps.task import Task, Told

CELLS = [f"toy n={2**at}" for at in range(1, 5)]
HELD = ("h0", "h1", "h2")


class Broken(Exception):
    """The power went."""


class Breaking(Here):
    """One worker in this process that is gone after ``after`` records."""

    def __init__(self, worker: ToyWorker, after: int | None = None) -> None:
        super().__init__(lambda: worker)
        self.worker, self.left = worker, after
        self.tasks: list[Task] = []

    def run(self, tasks: Sequence[Task]) -> Iterator[Told]:
        self.tasks += tasks
        for record in super().run(tasks):
            yield record
            if self.left is not None:
                self.left -= 1
                if not self.left:
                    raise Broken


def sweep(
    out: Path,
    labels: Sequence[str] = CELLS,
    *,
    after: int | None = None,
    concurrency: Sequence[int] = (1,),
    kind: Kind = "grid",
    until: float | None = None,
    progress: Silent | None = None,
    too_large: Sequence[str] = (),
    **of_worker: Any,
) -> tuple[Path, ToyWorker]:
    """One command; :class:`Broken` where it is to break off."""
    worker = ToyWorker(labels, **of_worker)
    asked = Asked(grid(labels, concurrency, too_large), out, kind, until)
    return drive(asked, Breaking(worker, after), progress or Silent()), worker


def broken(out: Path, labels: Sequence[str] = CELLS, **more: Any) -> None:
    """A command that breaks off."""
    with pytest.raises(Broken):
        sweep(out, labels, **more)


def records(path: Path, concurrency: int = 1) -> list[RequestRecord]:
    with RunFolder.load(path / f"c{concurrency}") as folder:
        return list(folder.records())


def read_json(*parts: Any) -> dict[str, Any]:
    return dict(json.loads(Path(*parts).read_text()))


def summary(path: Path) -> dict[str, Any]:
    return read_json(path, "c1", "summary.json")


def head(path: Path) -> dict[str, Any]:
    return read_json(path, "sweep.json")
