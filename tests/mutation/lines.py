"""Find which tests run which lines of the mutated files: traced once per test file, cached outside the project."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mutation.tracing import basetemp

CHOSEN = "not slow and not gpu"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "specbench-mutation")
LONGEST = 1800.0  # seconds for the tests of one folder, traced


@dataclass
class Lines:
    """Who runs what.

    Attributes:
        seconds: seconds of each passing test under the tracer.
        tests: tests that run a line ``(file, line)``, from 1.
        files: tests that run any line of a file.
        modules: modules outside the project that the tests import.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    tests: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    files: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    modules: list[str] = field(default_factory=list)


def _digest(paths: Iterable[Path]) -> str:
    made = hashlib.sha256()
    for path in sorted(paths):
        made.update(path.read_bytes())
    return made.hexdigest()


def _kept(root: Path, name: str) -> Path:
    """Where a test file's lines are kept, by its own content and what all tests share."""
    shared = [path for folder in ("", "support") for path in (root / "tests" / folder).glob("*.py")]
    return CACHE / f"{_digest([root / name])[:16]}{_digest(shared)[:16]}-{Path(name).stem}.json"


def _fresh(kept: Path, root: Path) -> dict[str, Any] | None:
    """What was traced of a test file, if the mutated files that it runs are still the same."""
    try:
        found: dict[str, Any] = json.loads(kept.read_text())
    except (OSError, ValueError):
        return None
    same = all((root / file).is_file() and _digest([root / file]) == was for file, was in found["targets"].items())
    return found if same else None


def parsed(trace: Path, root: Path) -> dict[str, dict[str, Any]]:
    """What to keep of each test file that a trace is of; a test has run what its shared fixtures ran, too."""
    ran: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    tests, modules = [], []
    for line in trace.read_text().splitlines():
        match json.loads(line):
            case ["ran", owner, file, number]:
                ran[owner][file].add(number)
            case ["test", test, seconds, passed, owners]:
                tests.append((test, seconds, passed, owners))
            case ["modules", names]:
                modules = names
    found: dict[str, dict[str, Any]] = {}
    for test, seconds, passed, owners in tests:
        file = found.setdefault(test.split("::")[0], {"targets": {}, "tests": {}, "modules": modules})
        lines: dict[str, set[int]] = defaultdict(set)
        for owner in (test, *owners):
            for target, numbers in ran[owner].items():
                lines[target] |= numbers
        file["targets"].update(dict.fromkeys(lines, ""))
        if passed and lines:
            file["tests"][test] = [seconds, {target: sorted(numbers) for target, numbers in lines.items()}]
    for file in found.values():
        file["targets"] = {target: _digest([root / target]) for target in file["targets"]}
    return found


def _trace(root: Path, targets: Sequence[str], names: Sequence[str]) -> None:
    """Runs test files under the tracer and keeps what it tells of each."""
    with tempfile.TemporaryDirectory(prefix="specbench-lines-") as base:
        trace = Path(base, "trace")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "mutation.tracing",
            "-m",
            CHOSEN,
        ]
        command += ["-m", CHOSEN, f"--basetemp={basetemp(time.time_ns())}", *names]
        env = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}", "OMP_NUM_THREADS": "1"}
        env |= {"MUTATION_TARGETS": ":".join(targets), "MUTATION_TRACE": str(trace)}
        subprocess.run(command, cwd=root, env=env, stdout=subprocess.DEVNULL, timeout=LONGEST)
        found = parsed(trace, root) if trace.exists() else {}
    CACHE.mkdir(parents=True, exist_ok=True)
    for name in names:
        kept = found.get(name, {"targets": {}, "tests": {}, "modules": []})
        _kept(root, name).write_text(json.dumps(kept))


def lines(
    root: Path, targets: Sequence[str], folders: Sequence[str], workers: int, left_out: tuple[str, ...] = ()
) -> Lines:
    """The lines that the tests of some folders run; what is not known yet is traced, a folder at a time.

    Args:
        root: the project, or a copy of it.
        targets: paths in it.
        folders: of tests in it, or files.
        workers: folders traced at once.
        left_out: folders in them that are not looked at.
    """
    names = {folder: _test_files(root, folder, left_out) for folder in folders}
    stale = [[name for name in found if _fresh(_kept(root, name), root) is None] for found in names.values()]
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda some: _trace(root, targets, some), [some for some in stale if some]))
    made, modules = Lines(), dict[str, None]()
    for name in (name for found in names.values() for name in found):
        known = _fresh(_kept(root, name), root) or {"tests": {}, "modules": []}
        modules |= dict.fromkeys(known["modules"])
        for test, (seconds, ran) in known["tests"].items():
            made.seconds[test] = seconds
            for file, numbers in ran.items():
                made.files[file].add(test)
                for number in numbers:
                    made.tests[file, number].add(test)
    made.modules = list(modules)
    return made


def _test_files(root: Path, folder: str, left_out: tuple[str, ...]) -> list[str]:
    paths = (root / folder).rglob("test_*.py") if (root / folder).is_dir() else [root / folder]
    found = sorted(str(path.relative_to(root)) for path in paths)
    return [name for name in found if not name.startswith(left_out)]
