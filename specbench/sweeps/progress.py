"""Show the progress of a sweep."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from specbench.common import Live
from specbench.results import RequestRecord


class SweepProgress(Live):
    """Show finished requests, the configuration with the most tokens per second so far, and the time left."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._costs: dict[str, tuple[int, float]] = {}

    def start(self, path: Path, concurrency: int, done: int, most: int) -> None:
        """Called when a part of a sweep starts or is resumed."""
        self._costs = {}
        going_on = f", {done} are done already" if done else ""
        self.note(f"concurrency {concurrency}: at most {most} requests{going_on}")
        self.begin(done, most)

    def request(self, record: RequestRecord) -> None:
        """Called when a request is finished."""
        tokens, seconds = self._costs.get(record.method, (0, 0.0))
        self._costs[record.method] = (tokens + record.decoded_tokens, seconds + record.decode_share_s)
        speeds = {label: tokens / seconds for label, (tokens, seconds) in self._costs.items() if seconds}
        best = max(speeds, key=lambda label: speeds[label], default=None)
        self.advance(f"{best} {speeds[best]:.1f} tok/s" if best is not None else "", "at most ")
