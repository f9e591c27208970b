"""Live progress of a sweep: a bar on a terminal and in a notebook, a line every tenth elsewhere."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID

from specbench.results import RequestRecord
from specbench.runner.progress import bar


class SweepProgress:
    """Requests done of those that there are at most, the cell with the most tokens per second so far, and time left."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._done = self._most = self._fresh = 0
        self._begun = time.monotonic()
        self._costs: dict[str, tuple[int, float]] = {}

    def __enter__(self) -> SweepProgress:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, path: Path, concurrency: int, done: int, most: int) -> None:
        """A part of a sweep begins, or goes on."""
        self._done, self._most, self._fresh, self._begun = done, most, 0, time.monotonic()
        self._costs = {}
        going_on = f", {done} are done already" if done else ""
        said = f"concurrency {concurrency}: at most {most} requests{going_on}"
        self._console.print(said, soft_wrap=True, markup=False)
        if self._console.is_terminal:
            if self._bar is None:
                self._bar = bar(self._console)
                self._task = self._bar.add_task("", total=most, completed=done)
                self._bar.start()
            elif self._task is not None:
                self._bar.reset(self._task, total=most, completed=done)

    def phase(self, text: str) -> None:
        """What is being done besides requests."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=text)
        else:
            self._console.print(f"{text} …")

    def note(self, text: str) -> None:
        """What is worth knowing when all is done, too."""
        self._console.print(text, soft_wrap=True, markup=False)

    def request(self, record: RequestRecord) -> None:
        """A request is finished."""
        self._done, self._fresh = self._done + 1, self._fresh + 1
        tokens, seconds = self._costs.get(record.method, (0, 0.0))
        self._costs[record.method] = (tokens + record.decoded_tokens, seconds + record.decode_share_s)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done, description=self._best())
        elif self._done == self._most or self._done % max(1, self._most // 10) == 0:
            left = (time.monotonic() - self._begun) / self._fresh * (self._most - self._done)
            line = f"{self._done}/{self._most} requests  {self._best()}  at most {left:.0f} s left"
            self._console.print(line, soft_wrap=True, markup=False)

    def _best(self) -> str:
        speeds = {label: tokens / seconds for label, (tokens, seconds) in self._costs.items() if seconds}
        if not speeds:
            return ""
        label = max(speeds, key=lambda label: speeds[label])
        return f"{label} {speeds[label]:.1f} tok/s"
