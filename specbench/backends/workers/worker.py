"""Run an engine: read requests from stdin and write answers to stdout, one JSON object per line.

    PYTHON -I worker.py ENGINE_FILE

Run as a file by the interpreter of the engine's environment, which has no specbench. The first input line has the
settings. Each ``ask`` is answered by its part of a line for every engine step that produced tokens, and by one ``end``,
also if it is given up. Requests that arrive during a step join the next one.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any, NamedTuple, Protocol


class Step(NamedTuple):
    """What an engine's step gave one request: new tokens, all draft tokens so far if known, and at its end counters."""

    number: int
    ids: Sequence[int]
    drafted: int | None = None
    ended: bool = False
    counters: Mapping[str, int] = {}


class Engine(Protocol):
    """Class ``Engine`` of an engine's file; its constructor gets the settings."""

    def versions(self) -> Mapping[str, Any]:
        """Return facts for the first output line; ``ready`` is the engine's version."""

    def add(self, number: int, ask: Mapping[str, Any]) -> None:
        """Add a request."""

    def step(self) -> Sequence[Any]:
        """Run a step and return a :class:`Step`, as a tuple, for each request with new tokens."""

    def give_up(self, number: int) -> None:
        """Abort a request and free its memory."""

    def counters(self) -> Mapping[str, int]:
        """Return counters since the start, summed over all requests; called while no request runs."""


class Asks:
    """Input lines, read without a thread, which would compete with the engine's own threads."""

    def __init__(self, fd: int) -> None:
        self._fd, self._rest = fd, b""

    def next(self) -> dict[str, Any] | None:
        """Wait for the next line; return None at the end of the input."""
        while b"\n" not in self._rest:
            if not (read := os.read(self._fd, 1 << 20)):
                return None
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def waiting(self) -> bool:
        """Return whether there is input to read, its end included."""
        return b"\n" in self._rest or bool(select.select([self._fd], [], [], 0)[0])


class Replies:
    """Output lines."""

    def __init__(self, fd: int) -> None:
        self._file = os.fdopen(fd, "wb", buffering=0)

    def send(self, **line: Any) -> None:
        """Write a line without buffering."""
        rest = json.dumps(line).encode() + b"\n"
        while rest:
            rest = rest[self._file.write(rest) :]


class Requests:
    """The running requests. The engine's counters are divided among requests only if these ran one after another."""

    def __init__(self, engine: Engine, replies: Replies) -> None:
        self._engine, self._replies = engine, replies
        self._before: dict[int, Mapping[str, int] | None] = {}  # counters at the start of a request that runs alone

    def serve(self, asks: Asks) -> None:
        """Answer until the input ends."""
        while True:
            while not self._before or asks.waiting():
                if (line := asks.next()) is None:
                    return
                if "ask" in line:
                    self._begin(line["ask"], line)
                elif line["give_up"] in self._before:  # otherwise it had already ended
                    self._engine.give_up(line["give_up"])
                    self._end(line["give_up"], {})
            steps = [Step(*step) for step in self._engine.step()]
            stamp = time.monotonic_ns()
            if new := [step[:3] for step in steps if step.ids]:
                self._replies.send(steps=new, ns=stamp)
            for step in steps:
                if step.ended:
                    self._end(step.number, step.counters)

    def _begin(self, number: int, ask: Mapping[str, Any]) -> None:
        alone = not self._before
        self._before = {**dict.fromkeys(self._before), number: self._engine.counters() if alone else None}
        self._engine.add(number, ask)

    def _end(self, number: int, counted: Mapping[str, int]) -> None:
        before = self._before.pop(number)
        if before is not None:
            counted = {name: value - before.get(name, 0) for name, value in self._engine.counters().items()}
        self._replies.send(end=number, counters=counted)


def main(file: str) -> None:
    """Start the engine, then answer until stdin ends."""
    replies = Replies(os.dup(1))
    os.dup2(2, 1)  # send prints of libraries to stderr, so that they do not mix with replies
    asks = Asks(0)
    first = asks.next()
    if first is None:
        return
    # Remove the engine's variables from the user's environment, so that only recorded settings affect it.
    for name in [name for name in os.environ if name.startswith(tuple(first["removed"]))]:
        del os.environ[name]
    os.environ.update(first["environment"])
    os.chdir("/")  # vLLM starts interpreters with -m, which search the working directory for modules first
    try:
        start: Callable[[Mapping[str, Any]], Engine] = _loaded(file).Engine
        engine = start(first["engine"])
        replies.send(**engine.versions())
        Requests(engine, replies).serve(asks)
    except Exception as error:
        replies.send(failed=f"{type(error).__name__}: {error}")
        raise


def _loaded(file: str) -> Any:
    """Import the engine's file, whose folder is not on the path: its modules have names of packages."""
    module = ModuleType("engine_of_worker")
    SourceFileLoader(module.__name__, file).exec_module(module)
    return module


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
