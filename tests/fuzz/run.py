"""Fuzz: hostile input to everything that reads, for some minutes. `make fuzz` tries it, by a seed.

What comes of an input is a value or one sentence, soon and in little memory. An input whose sentence is of a new class
is kept next to this file in its smallest form, and so is every fault; `tests/fuzz/test_corpus.py` tries all of them.
Each target works in a process of its own, so that one which is ended says whose input did that.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

_MEMORY = 3 << 30  # bytes more than a target has when it begins
_GRACE_S = 90.0
_SMALLER_S = 20.0


@dataclass
class Trial:
    """What happens to a target.

    Attributes:
        target: its name.
        scratch: folder for the current case and the report.
        seen: classes of outcomes.
        cases, new: how many were tried, and kept.
        faults: class -> (kind, what is wrong, the file that was kept).
    """

    target: str
    kinds: dict[str, Any]
    scratch: Path
    seed: str
    until: float
    seen: set[str] = field(default_factory=set)
    pool: dict[str, list[bytes]] = field(default_factory=dict)
    cases: int = 0
    new: int = 0
    faults: dict[str, tuple[str, str, str]] = field(default_factory=dict)

    def begin(self) -> None:
        """Takes what is kept as known, after a good one of each kind, whose first time takes longer."""
        from fuzz.cases import kept, outcome

        for name, kind in self.kinds.items():
            good = kind.good()
            self.pool[name] = [good]
            for _ in range(2):  # the first time imports and caches
                found = outcome(kind, good)
            if found.key:
                self.faults[f"{name}: {found.key}"] = (name, f"a good one is refused: {found}", "")
        for name, content, _ in kept(self.target, self.kinds):
            self.seen.add(outcome(self.kinds[name], content).key)
            self.pool[name].append(content)

    def draw(self) -> None:
        """Tries inputs that are drawn, until the time is over."""
        names, number = list(self.kinds), 0
        while time.monotonic() < self.until:
            name = names[number % len(names)]
            draw = random.Random(f"{self.seed}/{self.target}/{number}")
            number += 1
            self.tried(name, bytes(self.kinds[name].other(draw, draw.choice(self.pool[name]))))

    def tried(self, name: str, content: bytes) -> None:
        """Tries an input, and keeps it if it is new."""
        from fuzz.cases import keep, outcome, room, smallest

        kind = self.kinds[name]
        (self.scratch / "now").write_bytes(name.encode() + b"\n" + content)
        found = outcome(kind, content)
        self.cases += 1
        key = f"{name}: {found.key}" if found.fault else found.key
        if key not in self.seen and found.key:
            self.seen.add(key)
            file = None
            if found.fault or room(self.target, name, len(self.kinds)):
                seconds = _SMALLER_S if found.fault else 3.0
                content = smallest(content, lambda less: outcome(kind, less).key == found.key, seconds)
                file = keep(self.target, name, content, fault=bool(found.fault))
            self.new += file is not None
            if len(self.pool[name]) < 100 and len(content) < 1 << 17:
                self.pool[name].append(content)
            if found.fault:
                self.faults[key] = (name, found.fault, str(file or ""))
            self.write()
        elif self.cases % 100 == 0:
            self.write()

    def write(self) -> None:
        """Writes down how far it is."""
        report = {"cases": self.cases, "new": self.new, "classes": len(self.seen), "faults": list(self.faults.values())}
        (self.scratch / "report.tmp").write_text(json.dumps(report))
        (self.scratch / "report.tmp").rename(self.scratch / "report")


def attacked(target: str, seed: str, seconds: float, scratch: Path) -> None:
    """Attacks a target in this process, which ends with it."""
    from fuzz.targets import TARGETS

    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    error = os.open(scratch / "stderr", os.O_WRONLY | os.O_CREAT)
    os.dup2(error, 2)
    trial = Trial(target, TARGETS[target](), scratch, seed, 0)
    trial.begin()
    trial.until = time.monotonic() + seconds
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + _MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    trial.write()
    trial.draw()
    trial.write()


def watched(target: str, seconds: float, attack: Callable[[Path], None]) -> tuple[dict[str, Any], str]:
    """Lets a target be attacked in a child; (what it wrote down, what ended it)."""
    with tempfile.TemporaryDirectory(prefix="specbench-fuzz-") as folder:
        scratch = Path(folder)
        sys.stdout.flush()
        if (child := os.fork()) == 0:
            code = 1
            try:
                attack(scratch)
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(code)
        until, status = time.monotonic() + seconds + _GRACE_S, None
        while status is None and time.monotonic() < until + 60:
            ended, status = os.waitpid(child, os.WNOHANG)
            status = status if ended else None
            # A report is written at least now and then; setting up takes its time.
            if status is None and time.monotonic() > until:
                os.kill(child, signal.SIGKILL)
                status = os.waitpid(child, 0)[1]
                break
            time.sleep(0.05)
        assert status is not None
        report = scratch / "report"
        found = (
            json.loads(report.read_text()) if report.exists() else {"cases": 0, "new": 0, "classes": 0, "faults": []}
        )
        ended = os.waitstatus_to_exitcode(status)
        if ended == 0:
            return found, ""
        at = (scratch / "now").read_bytes() if (scratch / "now").exists() else b""
        output = (scratch / "stderr").read_text(errors="replace")[-1500:] if (scratch / "stderr").exists() else ""
        name, _, content = at.partition(b"\n")
        from fuzz.cases import keep

        file = keep(target, name.decode() or target, content, fault=True)
        return found, f"its process ended with {ended} at {file}\n{output}"


def main() -> int:
    parser = argparse.ArgumentParser(description="hostile input to everything that reads")
    parser.add_argument("--minutes", type=float, default=5.0, help="in all, shared by the targets; default 5")
    parser.add_argument("--seed", default="1", help="decides the inputs; default 1")
    parser.add_argument("--only", default="", metavar="T,T", help="targets; default all")
    options = parser.parse_args()
    began = time.monotonic()
    from fuzz.targets import TARGETS

    chosen = options.only.split(",") if options.only else list(TARGETS)
    if missing := [name for name in chosen if name not in TARGETS]:
        parser.error(f"no target {missing[0]}; known: {', '.join(TARGETS)}")
    print(f"seed {options.seed}; ready after {time.monotonic() - began:.0f} s", flush=True)
    share, bad = options.minutes * 60 / len(chosen), 0
    for name in chosen:
        found, fatal = watched(
            name,
            share,
            lambda scratch, name=name: attacked(name, options.seed, share, scratch),  # type: ignore[misc]
        )
        print(
            f"{name:14} {found['cases']:7,} cases {found['cases'] / share:7.0f} /s {found['classes']:4} classes "
            f"{found['new']:3} kept {len(found['faults']):3} faults",
            flush=True,
        )
        for kind, fault, file in found["faults"]:
            print(f"  {kind}: {fault}\n  kept: {file}")
            if file:
                print(f"  {Path(file).read_bytes()[:400]!r}", flush=True)
        if fatal:
            print(f"  {fatal}", flush=True)
        bad += len(found["faults"]) + bool(fatal)
    print(f"{bad} faults" if bad else "no faults")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
