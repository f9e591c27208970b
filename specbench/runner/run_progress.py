"""Show the progress of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from specbench.analysis import engine_line
from specbench.common import Live, console

if TYPE_CHECKING:
    from rich.console import Console

    from specbench.planning import Noting
    from specbench.results import RequestRecord, RunFolder


class RunProgress(Live):
    """Show finished requests, tokens per second of each method so far, and the time left."""

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        super().__init__(console)
        self._verbose = verbose
        self._simulated: set[str] = set()
        self._tokens: dict[str, int] = defaultdict(int)
        self._seconds: dict[str, float] = defaultdict(float)

    def done_already(self, folder: RunFolder) -> None:
        """Called if there is nothing to decode."""
        self.note(f"done already in {folder.path}; --again repeats")

    def start(self, folder: RunFolder, done: int, total: int, resumed: bool) -> None:
        """Called when a run starts, or is resumed with ``done`` finished requests."""
        self._simulated = set(folder.run.get("simulated", ()))
        if resumed:
            self._console.print(f"continuing in {folder.path} ({done} of {total} requests are done)")
        self.begin(done, total)

    def ready(self, engine: Mapping[str, Any]) -> None:
        """Called after the warm-up, with facts about the engine."""
        if self._verbose and (line := engine_line(engine)):
            self.note(line)

    def request(self, record: RequestRecord) -> None:
        """Called when a request is finished."""
        label = f"{record.method} (simulated)" if record.method in self._simulated else record.method
        self._tokens[label] += record.decoded_tokens
        self._seconds[label] += record.decode_share_s
        speeds = " · ".join(f"{m} {self._tokens[m] / s:.1f}" for m, s in sorted(self._seconds.items()) if s)
        self.advance(f"{speeds} tok/s")


def notes_of(plan: Noting) -> Console:
    """The destination of a plan's progress and notes: stderr, or nowhere."""
    return console(stderr=True, quiet=plan.quiet)


def printing_to(console: Console) -> Callable[[str], None]:
    """Receives lines for the user."""
    return lambda line: console.print(line, soft_wrap=True)
