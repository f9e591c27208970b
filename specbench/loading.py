"""Runs as pandas tables: what ``specbench.load`` and ``specbench export`` read. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd

from specbench.errors import UsageError
from specbench.reading import read_config, read_run, read_scores, whole_records
from specbench.reporting.longform import METHOD, REQUEST, Row, Runs, table
from specbench.storage import RunFolder
from specbench.sweep.drive import read_head
from specbench.sweep.table import is_sweep


def load(*folders: str | Path, text: bool = False) -> pd.DataFrame:
    """The requests of runs, a row each.

    Args:
        folders: run folders and sweep folders; of a sweep, every run in it (``c1``, ``c2``, …), named ``SWEEP/c1``.
        text: add the answers, as a column ``text``.

    Returns:
        The columns of :data:`specbench.reporting.longform.REQUEST`, times in seconds, then ``option_NAME`` for the
        options of the methods, ``correct_NAME`` for further metrics, ``measure_NAME`` for figures of the methods' own
        and ``gpu_NAME`` where the GPU told something. Plain decoding is the rows with method "ar". Unfinished runs are
        as they stand.

    Raises:
        UsageError: none is given; one is no run, is given twice, damaged, cut off, mixed or of a newer version.
    """
    return table((row for name, path in _runs(folders) for row in _requests(name, path, text)), REQUEST)


def load_methods(*folders: str | Path) -> pd.DataFrame:
    """The summaries of runs, a row per method; columns as in :data:`specbench.reporting.longform.METHOD`.

    Args:
        folders, and what is raised: as for :func:`load`.
    """
    return table((row for name, path in _runs(folders) for row in _methods(name, path)), METHOD)


def _runs(folders: Iterable[str | Path]) -> Iterator[tuple[str, Path]]:
    """The run folders with their names, each name and each folder once."""
    found: dict[str, Path] = {}
    for path in map(Path, folders):
        for name, place in _inside(path):
            if name in found:
                again = found[name].resolve() == place.resolve()
                raise UsageError(f"{place} is given twice" if again else f"{place} and {found[name]} share a name")
            found[name] = place
    if not found:
        raise UsageError("no run is given; name folders that specbench run or sweep wrote")
    yield from found.items()


def _inside(path: Path) -> Iterator[tuple[str, Path]]:
    name = path.resolve().name
    if not is_sweep(path):
        yield name, path
        return
    places = [path / f"c{count}" for count in read_head(path)["concurrency"] if (path / f"c{count}").is_dir()]
    if not places:
        raise UsageError(f"{path} has lost its runs (c1, …); repeat the sweep's command")
    yield from ((f"{name}/{place.name}", place) for place in places)


def _requests(name: str, path: Path, text: bool) -> Iterator[Row]:
    folder = RunFolder.load(path)
    config = read_config(folder)
    verdicts, metrics = read_scores(path)
    runs = Runs(name, config, _device(folder))
    for record in whole_records(folder, config, traces=False):
        row = runs.request(record, verdicts, metrics)
        yield {**row, "text": record.text} if text else row


def _methods(name: str, path: Path) -> Iterator[Row]:
    read = read_run(path, traces=False)
    runs = Runs(name, read.config, _device(RunFolder.load(path)))
    for row in read.summary["rows"]:
        yield runs.method(row, bool(read.summary["complete"]))


def _device(folder: RunFolder) -> str:
    """What the environment calls the device; a run that says nothing of it has its kind at least."""
    device = folder.run.get("environment", {}).get("device", {})
    return str(device.get("name") or folder.run["model"]["device"])
