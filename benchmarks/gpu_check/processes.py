"""Run each part in its own process with a time limit, so that a failing part does not end the check."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_check import vendor
from benchmarks.gpu_check.catalog import PARTS, Part
from benchmarks.gpu_check.records import NOT_MEASURED, Journal

_ENDING_S = 10.0  # seconds for a killed process to end: a driver can hold it

Say = Callable[[str], None]


@dataclass
class Processes:
    """Runner of parts, one after the other.

    Args:
        folder: folder of the check, for the parts' logs and shared caches.
        journal: journal for figures and outcomes of parts.
        settings: JSON-ready settings for every part.
        until: deadline of all parts, on the clock of ``time.monotonic``.
        say: prints a line to the terminal.
        rehearse: run parts on a CPU with Triton's interpreter.
        patience: factor for the time limit of each part.
    """

    folder: Path
    journal: Journal
    settings: Mapping[str, Any]
    until: float
    say: Say
    rehearse: bool = False
    patience: float = 1.0

    def run(self, part: Part) -> None:
        """Run one part in a process that has ended when this returns. State and figures are in the journal."""
        self.journal.append("began", part=part.name)
        left = self.until - time.monotonic()
        if left <= 0:
            self._end(part, NOT_MEASURED, "no time left; raise --seconds", 0.0)
            return
        allowed, began = self.patience * part.limit_s(self._pace()), time.monotonic()
        limit = min(allowed, left)
        self.say(f"{part.title} ({part.name}, about {part.seconds:.0f} s)")
        log = self.folder / f"{part.name}.log"
        with log.open("wb") as errors:
            child = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.gpu_check.child", part.name, part.target, str(self.journal.path)],
                stdin=subprocess.PIPE,
                stderr=errors,
                cwd=vendor.ROOT,
                env=self._environment(),
                start_new_session=True,  # so that its child processes can be ended too
            )
            assert child.stdin is not None
            with suppress(BrokenPipeError):  # it ended before reading; its exit status shows why
                child.stdin.write(json.dumps({**self.settings, "limit_s": limit, "parent": os.getpid()}).encode())
                child.stdin.close()
            try:
                code: int | None = child.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(child)
        seconds = time.monotonic() - began
        lacks = [line["lacks"] for line in self._raised(part) if line.get("lacks")]
        if code == 0:
            self._end(part, "done", "", seconds)
        elif code is None and left < allowed:
            self._end(part, NOT_MEASURED, "the time limit of the check ended it; raise --seconds", seconds)
        elif lacks:
            why = f"{lacks[-1]} is not installed; make gpu-bundle packs it"
            self._end(part, NOT_MEASURED, why, seconds)
        else:
            self._end(part, "failed", self._why(code, limit, part, log), seconds)

    def _pace(self) -> float | None:
        """Measured divided by expected compile time, over successful parts that have compiled."""
        expected = {part.name: part.compiles for part in PARTS if part.compiles}
        done = {name for name, one in self.journal.outcomes().items() if one.state == "done"}
        took = {line["part"]: line["seconds"] for line in self.journal.lines() if line["kind"] == "compiled"}
        known = [name for name in expected if name in took and name in done]
        return sum(took[name] for name in known) / sum(expected[name] for name in known) if known else None

    def _raised(self, part: Part) -> list[dict[str, Any]]:
        """Errors of the part's current attempt."""
        lines = self.journal.lines()
        begun = max(at for at, line in enumerate(lines) if line["kind"] == "began" and line["part"] == part.name)
        return [line for line in lines[begun:] if line["kind"] == "raised" and line["part"] == part.name]

    def _end(self, part: Part, state: str, why: str, seconds: float) -> None:
        self.journal.append("ended", part=part.name, state=state, why=why, seconds=round(seconds, 1))
        self.say(f"  {part.name}: {state}{f', {why}' if why else ''}" + (f" in {seconds:.1f} s" if seconds else ""))

    def _why(self, code: int | None, limit: float, part: Part, log: Path) -> str:
        """Describe in one line why a part ended; details are in its log."""
        if code is None:
            return f"stopped at its time limit of {limit:.0f} s; {log.name} shows where it was"
        raised = self._raised(part)
        if code > 0 and raised:
            return f"{raised[-1]['why']}; see {log.name}"
        if code > 0:
            return f"ended with status {code}; see {log.name}"
        name = signal.Signals(-code).name
        guess = ", maybe out of memory" if name == "SIGKILL" else ""
        return f"ended by {name}{guess}; {log.name} shows where it was"

    def _environment(self) -> dict[str, str]:
        """Environment variables of a part: no network, and compiler caches in the check's folder."""
        caches = self.folder.resolve() / "cache"
        own = {
            "PYTHONPATH": os.pathsep.join([*vendor.paths(), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "TRITON_CACHE_DIR": str(caches / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            **({"TRITON_INTERPRET": "1"} if self.rehearse else {}),
        }
        return {**os.environ, **own}


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children. A process that a driver holds may remain."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        child.wait(_ENDING_S)
