"""A process that has imported all modules outside the project and forks a child for every mutant.

It reads one JSON line per mutant: the mutated file and its source (or no file), the tests, and the seconds that they
take. It answers with one line: the outcome, the failed test, and the number of tests that ran.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import json
import linecache
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from mutation.tracing import basetemp, without_limits

#: When a child is stopped: seconds, and as many times those that its tests take; of the clock, and of processor time.
WALL, CPU = (60.0, 4.0), (15.0, 3.0)


class Chosen:
    """The tests of a mutant, in their order; remembers the first that fails."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._order = {test: at for at, test in enumerate(tests)}
        self.failed, self.ran = "", 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        without_limits(config)
        items[:] = sorted(
            (item for item in items if self._place(item) is not None), key=lambda item: self._place(item) or 0
        )

    def _place(self, item: pytest.Item) -> int | None:
        """Of a test, or of its whole file."""
        return self._order.get(item.nodeid, self._order.get(item.nodeid.split("::")[0]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.ran += report.when == "call"
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


def install(path: Path, source: str) -> None:
    """Has one file's module made from another source when it is imported, from now on and in this process."""
    target, read = os.path.realpath(path), importlib.machinery.SourceFileLoader.get_code
    # Triton's interpreter compiles a kernel from what `inspect` says of it.
    linecache.cache[str(path.absolute())] = len(source), None, source.splitlines(keepends=True), target

    def get_code(loader: importlib.machinery.SourceFileLoader, name: str) -> CodeType | None:
        if os.path.realpath(loader.path) == target:
            return compile(source, loader.path, "exec", dont_inherit=True)
        return read(loader, name)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def tested(tests: Sequence[str], *more: str) -> dict[str, Any]:
    """Runs tests up to the first that fails, in this process."""
    chosen = Chosen(tests)
    files = list(dict.fromkeys(test.split("::")[0] for test in tests))
    status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *more, *files], [chosen])
    if status == pytest.ExitCode.OK and chosen.ran:
        return {"outcome": "survived", "test": "", "ran": chosen.ran}
    if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return {"outcome": "not run", "test": "", "ran": 0}
    return {"outcome": "killed", "test": chosen.failed, "ran": chosen.ran}


def _child(order: dict[str, Any], folder: Path) -> None:
    """The child's whole life: its answer goes to a file in ``folder``."""
    os.setsid()
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    limit = int(CPU[0] + CPU[1] * order["seconds"])
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    try:
        if order["file"]:
            install(Path(order["file"]), order["source"])
        answer = tested(order["tests"], f"--basetemp={basetemp(os.getpid())}", *order.get("options", []))
    except BaseException as error:  # whatever a mutant does when it is imported, even an exit, has it noticed
        answer = {"outcome": "killed", "test": repr(error), "ran": 0}
    (folder / "answer.part").write_text(json.dumps(answer))
    os.rename(folder / "answer.part", folder / "answer")


def answer(order: dict[str, Any]) -> dict[str, Any]:
    """Runs one mutant in a child; "timed out" where it took many times as long as the tests do, or was killed by that.

    A mutant that ends its process counts as noticed.
    """
    folder = Path(tempfile.mkdtemp(prefix="specbench-mutant-"))
    start, wall = time.monotonic(), WALL[0] + WALL[1] * order["seconds"]
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            _child(order, folder)
        os._exit(0)
    ended = None
    while ended is None and time.monotonic() - start < wall:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            ended = status
        else:
            time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # and all processes that its tests started
    if ended is None:
        os.waitpid(pid, 0)
    if (folder / "answer").exists():
        made: dict[str, Any] = json.loads((folder / "answer").read_text())
    elif ended is None or os.waitstatus_to_exitcode(ended) in (-signal.SIGXCPU, -signal.SIGKILL):
        made = {"outcome": "timed out", "test": "", "ran": 0}
    else:
        made = {"outcome": "killed", "test": "the process ended", "ran": 0}
    made["seconds"] = round(time.monotonic() - start, 1)
    for left in (folder, basetemp(pid)):
        shutil.rmtree(left, ignore_errors=True)
    return made


def main() -> int:
    for name in json.loads(sys.stdin.readline()):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    out = os.dup(1)
    os.dup2(2, 1)
    for line in sys.stdin:
        os.write(out, (json.dumps(answer(json.loads(line))) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
