"""The last run that a command wrote outside of ``results/``, remembered for ``latest``, by working directory."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from specbench.common import SpecbenchError, cache_folder, make_folder, read_json_object, write_json_atomic
from specbench.planning import PROFILES, RESULTS

#: In place of a folder: the newest one.
LATEST = "latest"
#: Where commands write by default.
LOOKED_THROUGH = (RESULTS, PROFILES)

_MOST = 100  # working directories; older entries are dropped


def remember(folder: Path) -> None:
    """Keep the place of a finished run or sweep; without an error where the cache cannot be written."""
    here, place = Path.cwd(), folder.absolute()
    if any(place.is_relative_to(here / each) for each in LOOKED_THROUGH):
        return
    if (file := _file()) is None:
        return
    with suppress(SpecbenchError, OSError):
        known = _read(file)
        known.pop(str(here), None)
        make_folder(file.parent)
        write_json_atomic(file, dict([*known.items(), (str(here), str(place))][-_MOST:]))


def newest_folder() -> Path | None:
    """The folder that ``latest`` stands for in this working directory, or None."""
    from specbench.report import newest

    last = remembered()
    return newest([*LOOKED_THROUGH, *([last] if last else [])])


def short_name(folder: Path) -> str:
    """``latest`` if it stands for this folder now, else the folder's path."""
    found = newest_folder()
    return LATEST if found is not None and found.absolute() == folder.absolute() else str(folder)


def remembered() -> Path | None:
    """The run or sweep that was remembered last in this working directory, if it is still there."""
    file = _file()
    place = _read(file).get(str(Path.cwd())) if file else None
    return Path(place) if isinstance(place, str) and os.path.isdir(place) else None


def _file() -> Path | None:
    folder = cache_folder("latest")
    return folder and folder / "runs.json"


def _read(file: Path) -> dict[str, object]:
    with suppress(SpecbenchError, OSError):
        if file.is_file():
            return read_json_object(file)
    return {}
