"""Counting: how many of many are done, said at every tenth of them."""

from __future__ import annotations

import time
from collections.abc import Callable


def counting(say: Callable[[str], None], what: str) -> Callable[[int, int], None]:
    """Says how many of ``what`` are done, at every tenth of them: how many a minute, and the time left.

    Returns:
        Takes (done, in all), at the start and whenever more are done.
    """
    begun = time.monotonic()
    first: int | None = None
    said = -1

    def told(done: int, total: int) -> None:
        nonlocal first, said
        first = done if first is None else first
        tenth = 10 * done // max(1, total)
        if tenth == said:
            return
        said = tenth
        pace = (done - first) / (time.monotonic() - begun)
        rest = f"  {60 * pace:.0f}/min  {(total - done) / pace:.0f} s left" if pace else ""
        say(f"{done}/{total} {what}{rest}")

    return told
