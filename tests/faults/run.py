"""Planted faults: does the suite notice one wrong expression? `make test-faults` plants each and runs what must fail.

A fault is a patch in this folder: a unified diff of one expression, below lines that say what it breaks and which test
files have to fail. Each is applied to a copy of the project, where only those files run. A fault is caught when every
one of them has a failing test; one that goes unnoticed, or whose patch no longer applies, fails the command.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTEST_FAILED = 1  # pytest's exit status for failing tests; anything above says that they did not even run
LONGEST = 300.0  # seconds for one test file; a fault may as well make it hang, which counts as noticed


@dataclass(frozen=True)
class Fault:
    """One planted fault: its patch, its area, what it breaks, and the test files that have to fail."""

    patch: Path
    area: str
    breaks: str
    fails: tuple[str, ...]
    blind: bool  # written without looking at the tests
    missed: bool  # the suite did not notice it when it was written

    @property
    def name(self) -> str:
        return self.patch.stem


def read(patch: Path) -> Fault:
    """The fault of a patch file; `ValueError` names a line that is missing above its diff."""
    head = patch.read_text().split("\ndiff --git ", 1)[0]
    lines = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    try:
        return Fault(
            patch,
            area=lines["Area"],
            breaks=lines["Breaks"],
            fails=tuple(lines["Fails"].split()),
            blind=lines["Blind"] == "yes",
            missed=lines["Missed at first"] == "yes",
        )
    except KeyError as missing:
        raise ValueError(f"{patch.name} has no line that begins with {missing.args[0]}:") from None


def faults() -> list[Fault]:
    return [read(patch) for patch in sorted(HERE.glob("*.patch"))]


def copied(folder: Path) -> Path:
    """A copy of the project's files as they are in the working tree, without what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        source, target = ROOT / name, folder / name
        if name and (source.is_symlink() or source.exists()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return folder


def apply(patch: Path, folder: Path, *, reverse: bool = False) -> str | None:
    """Plants a fault in a copy, or takes it out again; what git says where the patch does not apply."""
    way = ["--reverse"] if reverse else []
    # A copy lies in no repository, and must not take one above it for its own.
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(["git", "apply", *way, str(patch)], cwd=folder, capture_output=True, text=True, env=env)
    return None if done.returncode == 0 else done.stderr.strip().splitlines()[0]


def outcome(test: str, folder: Path) -> int | None:
    """pytest's exit status for one test file of a copy, up to its first failure; None where it hung."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu", test]
    # Bytecode is told apart by a file's second and size: a fault may keep both.
    env = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, env=env, timeout=LONGEST).returncode
    except subprocess.TimeoutExpired:
        return None


def unsound(test: str, folder: Path) -> str | None:
    """What is wrong with a test file that has to pass without a fault; None when it passes."""
    return None if outcome(test, folder) == 0 else f"{test} does not pass without a fault"


def unnoticed(fault: Fault, folder: Path) -> str | None:
    """Why a fault counts as missed; None when every file that it names fails with it."""
    if refusal := apply(fault.patch, folder):
        return f"the patch no longer applies: {refusal}"
    try:
        for test in fault.fails:
            status = outcome(test, folder)
            if status not in (PYTEST_FAILED, None):
                return (
                    f"{test} passes with it" if status == 0 else f"{test} did not run: pytest's exit status is {status}"
                )
        return None
    finally:
        apply(fault.patch, folder, reverse=True)


def results(chosen: list[Fault], workers: int) -> Iterator[tuple[str, str | None]]:
    """Name and complaint: first every named file without a fault, which must pass, and then each fault."""
    with tempfile.TemporaryDirectory(prefix="specbench-faults-") as base:
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(workers):
            copies.put(copied(Path(base, str(number))))

        def checked(name: str, check: Callable[[Path], str | None]) -> tuple[str, str | None]:
            folder = copies.get()
            try:
                return name, check(folder)
            finally:
                copies.put(folder)

        tests = sorted({test for fault in chosen for test in fault.fails})
        with ThreadPoolExecutor(workers) as pool:
            yield from pool.map(checked, tests, [partial(unsound, test) for test in tests])
            yield from pool.map(
                checked, [fault.name for fault in chosen], [partial(unnoticed, fault) for fault in chosen]
            )


def main() -> int:
    parser = argparse.ArgumentParser(description="plant each fault, and see whether its tests fail")
    parser.add_argument("names", nargs="*", help="faults by name, without .patch; all of them by default")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="copies tested at once")
    options = parser.parse_args()
    known = faults()
    if unknown := {*options.names} - {fault.name for fault in known}:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    chosen = [fault for fault in known if not options.names or fault.name in options.names]
    start, complaints = time.monotonic(), 0
    for name, complaint in results(chosen, options.workers):
        complaints += complaint is not None
        print(f"{'ok' if complaint is None else 'NO':<3} {name}{f': {complaint}' if complaint else ''}", flush=True)
    minutes = (time.monotonic() - start) / 60
    print(
        f"{len(chosen)} faults planted in {minutes:.1f} min: "
        + (f"{complaints} complaints" if complaints else "all caught")
    )
    return 1 if complaints or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
