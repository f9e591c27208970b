"""Processes: command lines as a shell starts them, each in a process of its own; what they say, and how they end."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fuzz import lines
from specbench.common.errors import SpecbenchError

_LONGEST_S = 20.0  # of processor time; on a machine of its own each takes one
# What is right as it stands: half of the lines, so that output which cannot be written is tried too.
_RIGHT = (
    ("show", "run"), ("show", "run", "--json"), ("show", "run", "--requests"), ("show", "sweep"), ("export", "run"),
    ("compare", "run:ar", "run:jf"), ("compare", "run:ar", "run:jf", "--prompts"), ("report", "run", "sweep"),
    ("--help",),
    ("list", "methods"), ("list", "tasks", "--json"),
    ("claims",),
    ("export", "sweep", "--to", "json"),
    ("--version",),
    ("run", "--model", "config:tiny", "--task", "prompts", "--data-file", "mine.jsonl", "--limit", "1"),
    ("judge", "run", "--import", "mine.jsonl"), ("show", "latest"),
    ("tune", "--method", "jf", "--model", "config:tiny"),
)  # fmt: skip

_ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {}, {}, {"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}, {"COLUMNS": "1"}, {"COLUMNS": "x"}, {"HOME": "/nowhere"},
)  # fmt: skip


def _endings(draw: random.Random) -> tuple[str, dict[str, str]]:
    """Where the output goes, and what a terminal may be set to."""
    out = draw.choice(("pipe", "pipe", "pipe", "pipe", "/dev/full", "closed"))
    return out, draw.choice(_ENVIRONMENTS)


def started(args: list[str], here: Path, out: str, more: dict[str, str]) -> tuple[int, str, str, float]:
    """Exit code, both streams, and seconds of processor time."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **more}
    before = os.times()
    with open(out if out.startswith("/") else os.devnull, "w") as end:
        done = subprocess.run(
            [sys.executable, "-m", "specbench", *args],
            cwd=here,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if out == "pipe" else end,
            stderr=subprocess.PIPE,
            preexec_fn=(lambda: os.close(1)) if out == "closed" else None,
            timeout=120,
        )
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    said, err = ((each or b"").decode("utf-8", "replace") for each in (done.stdout, done.stderr))
    return done.returncode, said, err, spent


def line(draw: random.Random) -> list[str]:
    """A command line that reads, or that predicts what it would do, and that a shell can pass on."""
    args = [*draw.choice(_RIGHT)] if draw.random() < 0.5 else lines.line(draw, lines.READERS)
    if args[0] in ("run", "sweep", "tune") and "--dry-run" not in args:
        args.append("--dry-run")
    return [lines.inside(each.replace("\0", "").replace("\ud800", "\udcff"))[: 1 << 16] for each in args]


def tried(count: int, seed: str) -> int:
    """Tries so many, and says what is wrong with each that is; 1 where one is."""
    bad, codes = 0, dict[int, int]()
    began = time.monotonic()
    for number in range(count):
        draw = random.Random(f"{seed}/process/{number}")
        args = line(draw)
        out, more = _endings(draw)
        wrong, code = "", 0
        with tempfile.TemporaryDirectory(prefix="specbench-fuzz-") as folder:
            here = Path(folder, "x", "here")
            here.mkdir(parents=True)
            lines.furnish(here)
            try:
                code, said, err, spent = started(args, here, out, more)
                lines.checked(code, said if "--csv" not in args else "", err)
                wrong = f"{spent:.0f} s of processor time" if spent > _LONGEST_S else ""
            except SpecbenchError:
                wrong = f"{spent:.0f} s of processor time" if spent > _LONGEST_S else ""
            except (AssertionError, subprocess.TimeoutExpired) as error:
                wrong = str(error)[-1500:]
        codes[code] = codes.get(code, 0) + 1
        if wrong:
            bad += 1
            shown = [each if len(each) < 200 else f"{each[:80]}… ({len(each)})" for each in args]
            sys.stdout.write(f"case {number}: {shown}, output to {out}, {more}: {wrong}\n")
            sys.stdout.flush()
    told = ", ".join(f"{code}: {many}" for code, many in sorted(codes.items()))
    sys.stdout.write(f"{count} processes in {time.monotonic() - began:.0f} s; by exit code {told}; {bad} faults\n")
    return 1 if bad else 0
