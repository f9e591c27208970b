"""``specbench show RUN --race A,B``: replay in the terminal, or write a page or a film."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.cli import output
from specbench.common import UsageError

if TYPE_CHECKING:
    from specbench.analysis import ReadRun


_PAGES = (".html", ".htm")


def show_race(read: ReadRun, methods: str, request: str | None, speed: float, out: Path | None, as_json: bool) -> None:
    """Show a race, or write it to the file ``out``: a page (.html) or a film (.gif, or .mp4 by ffmpeg)."""
    from specbench.analysis import disturbance_line
    from specbench.report import play_race, race, race_data, write_race

    if not 0.01 <= speed <= 1000:
        raise UsageError(f"--speed must be from 0.01 to 1000, not {speed:g}")
    found = race(read.config, read.records, [name.strip() for name in methods.split(",") if name.strip()], request)
    about = [line] if (line := disturbance_line(read.summary)) else []
    about += [] if read.complete else ["the run is not complete"]
    if out is None or out.suffix.lower() not in _PAGES:  # a page lists them among its conditions
        found = replace(found, notes=[*found.notes, *about])
    if out is not None:
        output.stdout().print(str(write_race(found, read, out, speed)), soft_wrap=True, markup=False)
    elif as_json:
        output.emit_json(race_data(found))
    else:
        play_race(output.stdout(), found, speed)
