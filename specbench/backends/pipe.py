"""Pipe: lines of JSON to and from a worker process, each with the time at which it was here. No torch."""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any

from specbench.backends.processes import Child
from specbench.common.errors import EngineFault, UsageError, one_line
from specbench.common.reading import parse_json

_LONGEST = 1 << 20  # bytes of a line; a step's tokens have some hundred


class Pipe:
    """Pipe: what a worker is told and what it says.

    Args:
        child: started with pipes.
    """

    def __init__(self, child: Child) -> None:
        self._child, self._rest, self._read_ns = child, b"", 0

    def send(self, **line: Any) -> None:
        """Writes a line.

        Raises:
            EngineFault: the worker has ended.
        """
        assert self._child.process.stdin is not None
        try:
            self._child.process.stdin.write(json.dumps(line).encode() + b"\n")
            self._child.process.stdin.flush()
        except OSError:
            raise self._child.died() from None

    def next(self, within_s: float, doing: str) -> tuple[int, dict[str, Any]]:
        """The next line and when its last byte was here, on the clock of ``time.perf_counter_ns``.

        Args:
            within_s: seconds to wait.
            doing: what it is waited for to do, for errors.

        Raises:
            EngineFault: it ended, it stalled, or what it wrote is no line of ours.
        """
        until = time.monotonic() + within_s
        assert self._child.process.stdout is not None
        out = self._child.process.stdout.fileno()
        while b"\n" not in self._rest:
            if len(self._rest) > _LONGEST:
                raise EngineFault(f"its worker wrote a line of more than {_LONGEST >> 20} MiB")
            left = until - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                raise EngineFault(f"it stalled: nothing came for {within_s:g} s while it had to {doing}")
            read = os.read(out, 1 << 16)
            self._read_ns = time.perf_counter_ns()
            if not read:
                raise self._child.died()
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            found = parse_json(line, "it", "")
        except UsageError:
            found = None
        if not isinstance(found, dict):
            raise EngineFault(f"its worker wrote what is none of its replies: {one_line(repr(line[:80]), 100)}")
        if "failed" in found:
            raise EngineFault(one_line(str(found["failed"]), 300))
        return self._read_ns, found
