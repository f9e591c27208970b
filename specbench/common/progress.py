"""Show progress: a line at every tenth, or a bar on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from typing_extensions import Self


class Tenths:
    """Report progress at the start and after every tenth; call it with (done, total).

    Args:
        seconds: shortest time between two lines.
    """

    def __init__(self, say: Callable[[str], None], line: Callable[[int, int], str], seconds: float = 0.0) -> None:
        self._say, self._line, self._seconds = say, line, seconds
        self._last, self._next = -1, 0.0

    def __call__(self, done: int, total: int) -> None:
        tenth = 10 * done // total if total else 10
        if tenth > self._last and time.monotonic() >= self._next:
            self._last, self._next = tenth, time.monotonic() + self._seconds
            self._say(self._line(done, total))


def progress_lines(say: Callable[[str], None], what: str) -> Tenths:
    """Report at every tenth how many of ``what`` are done, how many per minute, and the time left."""
    begun = time.monotonic()
    first: list[int] = []

    def line(done: int, total: int) -> str:
        first.append(done)
        pace = (done - first[0]) / max(1e-9, time.monotonic() - begun)
        rest = f"  {60 * pace:.0f}/min  {(total - done) / pace:.0f} s left" if pace else ""
        return f"{done}/{total} {what}{rest}"

    return Tenths(say, line)


class Live:
    """Requests done, a text about them, and the time left: a bar on a terminal, elsewhere a line at every tenth."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._done = self._total = self._fresh = 0
        self._begun = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, done: int, total: int) -> None:
        """Start counting, or start again."""
        self._done, self._total, self._fresh, self._begun = done, total, 0, time.monotonic()
        if self._bar is not None and self._task is not None:
            self._bar.reset(self._task, total=total, completed=done)
        elif self._console.is_terminal:
            self._bar = bar(self._console)
            self._task = self._bar.add_task("", total=total, completed=done)
            self._bar.start()

    def advance(self, text: str, left: str = "") -> None:
        """Count one more."""
        self._done, self._fresh = self._done + 1, self._fresh + 1
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done, description=text)
        elif self._done == self._total or self._done % max(1, self._total // 10) == 0:
            seconds = (time.monotonic() - self._begun) / self._fresh * (self._total - self._done)
            self.note(f"{self._done}/{self._total} requests  {text}  {left}{seconds:.0f} s left")

    def phase(self, text: str) -> None:
        """Show what is being done besides requests."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=text)
        else:
            self._console.print(f"{text} …")

    def note(self, text: str) -> None:
        """Print a line that stays on the screen."""
        self._console.print(text, soft_wrap=True, markup=False)


def bar(console: Console) -> Progress:
    """A bar with a description, which is not markup, and the time left."""
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
