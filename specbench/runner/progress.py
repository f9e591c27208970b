"""Progress: what a run says live."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from specbench.common.shown import console
from specbench.results.engine_line import engine_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from specbench.results import RequestRecord, RunFolder
    from specbench.runner.plan import Noting


class RunProgress:
    """Requests done, tokens per second of each method so far, and time left."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._done = self._total = 0
        self._begun = time.monotonic()
        self._fresh = 0
        self._simulated: set[str] = set()
        self._tokens: dict[str, int] = defaultdict(int)
        self._seconds: dict[str, float] = defaultdict(float)

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.stop()

    def done_already(self, folder: RunFolder) -> None:
        """There is nothing to decode."""
        self._console.print(f"done already in {folder.path}; --again repeats", soft_wrap=True)

    def start(self, folder: RunFolder, done: int, total: int, resumed: bool) -> None:
        """A run begins, or goes on where ``done`` requests are finished already."""
        self._done, self._total, self._begun = done, total, time.monotonic()
        self._simulated = set(folder.run.get("simulated", ()))
        if resumed:
            self._console.print(f"going on in {folder.path} ({done} of {total} requests are done)")
        if self._console.is_terminal:
            self._bar = bar(self._console)
            self._task = self._bar.add_task("", total=total, completed=done)
            self._bar.start()

    def phase(self, text: str) -> None:
        """What is being done besides requests."""
        self._say(text)

    def note(self, text: str) -> None:
        """What is worth knowing when all is done, too."""
        self._console.print(text, soft_wrap=True)

    def ready(self, engine: Mapping[str, Any]) -> None:
        """Everything is warm; the engine says what it runs on."""
        if line := engine_line(engine):
            self._console.print(line, soft_wrap=True)

    def request(self, record: RequestRecord) -> None:
        """A request is finished."""
        self._done += 1
        self._fresh += 1
        label = f"{record.method} (simulated)" if record.method in self._simulated else record.method
        self._tokens[label] += record.decoded_tokens
        self._seconds[label] += record.decode_share_s
        speeds = " · ".join(f"{m} {self._tokens[m] / s:.1f}" for m, s in sorted(self._seconds.items()) if s)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done, description=f"{speeds} tok/s")
        elif self._done == self._total or self._done % max(1, self._total // 10) == 0:
            left = (time.monotonic() - self._begun) / self._fresh * (self._total - self._done)
            self._console.print(f"{self._done}/{self._total} requests  {speeds} tok/s  {left:.0f} s left")

    def _say(self, text: str) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=text)
        else:
            self._console.print(f"{text} …")


def bar(console: Console) -> Progress:
    """A bar with a description, which is no markup, and the time that is left."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.completed}/{task.total}"),
        BarColumn(bar_width=16),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


def notes_of(plan: Noting) -> Console:
    """Where the progress and the notes of a plan go: to stderr, or nowhere."""
    return console(stderr=True, quiet=plan.quiet)


def noting(console: Console) -> Callable[[str], None]:
    """Takes lines for the user."""
    return lambda line: console.print(line, soft_wrap=True)
