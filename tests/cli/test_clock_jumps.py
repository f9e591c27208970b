"""A clock that jumps: it decides what time is written on a run, and nothing that is waited for, measured or kept."""

from __future__ import annotations

import ast
import datetime as standard
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import asserting
from support.wording import wording

import specbench
from specbench.common import native
from specbench.report import newest

DAY = 86400.0

#: Where the wall clock is read, and what for; all else that takes time goes by clocks that never jump.
READS = {
    "common/files.py": "name of a folder",
    "common/native.py": "age of what killed builds have left",
    "models/chat.py": "in a prompt of who has no run",
    "models/loader.py": "in the prompts of a run, once",
    "runner/calibration.py": "written beside stored times",
    "runner/config.py": "written in a run",
    "sweeps/driver.py": "written in a sweep",
}

TIMES = {"time", "time_ns", "localtime", "gmtime", "ctime", "strftime", "asctime", "CLOCK_REALTIME"}
DATES = {"now", "utcnow", "today"}

MAYBE = re.compile(rf"\b({'|'.join(sorted(TIMES | DATES))})\b|from time import")  # parsing every source takes seconds

Jumping = Callable[[Iterator[float]], None]


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> Jumping:
    """Sets the wall clock: each look at it gets the next of these seconds beside the true time."""

    def start(offsets: Iterator[float]) -> None:
        true = time.time

        class Jumps(standard.datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return standard.datetime.fromtimestamp(time.time(), tz)

        monkeypatch.setattr(time, "time", lambda: true() + next(offsets))
        monkeypatch.setattr(time, "time_ns", lambda: int(1e9 * time.time()))
        for name, module in [*sys.modules.items()]:
            if name.startswith("specbench.") and getattr(module, "datetime", None) is standard.datetime:
                monkeypatch.setattr(module, "datetime", Jumps)

    return start


@pytest.fixture
def command(tmp_path: Path) -> tuple[object, ...]:
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text('{"prompt": "Once upon a time"}\n{"prompt": "Twice upon a time"}\n')
    asked = ("--task", "prompts", "--data-file", prompts, "--max-new-tokens", 4, "--method", "ar")
    return ("run", "--model", "config:tiny", *asked, "--out", tmp_path / "out")


def folders(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "out").iterdir())


def test_nothing_else_reads_the_wall_clock() -> None:
    root = Path(specbench.__file__).parent
    found = {
        str(file.relative_to(root))
        for folder in (root, root / "methods", root / "tasks")  # which are links
        for file in folder.rglob("*.py")
        if MAYBE.search(code := file.read_text()) and any(map(_reads, ast.walk(ast.parse(code))))
    }
    assert found == {*READS}


def _reads(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "time"
    if not isinstance(node, ast.Attribute):
        return False
    whose = ast.unparse(node.value)
    return (
        node.attr in TIMES if whose == "time" else node.attr in DATES and whose.split(".")[-1] in ("datetime", "date")
    )


def test_what_would_read_it_is_seen() -> None:
    for code in (
        "time.time()",
        "datetime.now(tz)",
        "datetime.datetime.utcnow()",
        "time.clock_gettime(time.CLOCK_REALTIME)",
        "from time import time",
    ):
        assert any(map(_reads, ast.walk(ast.parse(code)))), code
        assert MAYBE.search(code), code
    for code in ("time.monotonic()", "self._now()", "runner.now"):
        assert not any(map(_reads, ast.walk(ast.parse(code)))), code


def test_times_and_answers_are_what_they_are_though_it_goes_back_at_every_look(
    cli: Any, command: Any, tmp_path: Path, jumping: Jumping
) -> None:
    began = time.monotonic()
    jumping(itertools.count(0, -DAY))
    said = cli.ok(*command)
    taken = time.monotonic() - began
    (run,) = folders(tmp_path)
    records = [json.loads(line) for line in (run / "requests.jsonl").read_text().splitlines()]
    assert len(records) == 2
    assert all(0 < record["latency_s"] < taken for record in records)
    left = [float(line.split()[-3]) for line in said.err.splitlines() if line.endswith(" s left")]
    assert left
    assert all(0 <= seconds <= 60 + 10 * taken for seconds in left)


@pytest.mark.parametrize("jump", [-DAY, DAY])
def test_a_run_that_was_broken_off_goes_on_where_it_was(
    cli: Any, command: Any, tmp_path: Path, jumping: Jumping, jump: float
) -> None:
    cli.ok(*command)
    (run,) = folders(tmp_path)
    lines = (run / "requests.jsonl").read_bytes().splitlines(keepends=True)
    for name in ("DONE", "summary.json"):
        (run / name).unlink()
    (run / "requests.jsonl").write_bytes(lines[0])
    jumping(itertools.repeat(jump))
    assert f"{run}" in cli.ok(*command, columns=1000).err
    assert folders(tmp_path) == [run]
    assert (run / "requests.jsonl").read_bytes().startswith(lines[0])


def test_a_run_of_yesterday_takes_no_name_of_todays_and_replaces_nothing(
    cli: Any, command: Any, tmp_path: Path, jumping: Jumping
) -> None:
    cli.ok(*command)
    (first,) = folders(tmp_path)
    before = (first / "requests.jsonl").read_bytes()
    jumping(itertools.repeat(-DAY))
    cli.ok(*command, "--again")
    cli.ok(*command, "--again")
    assert len(folders(tmp_path)) == 3
    assert (first / "requests.jsonl").read_bytes() == before
    assert newest([tmp_path / "out"]) == first  # by what is written on it: nothing else is known of a folder


def test_a_clock_that_nobody_has_set_makes_runs_that_can_be_read(
    cli: Any, command: Any, tmp_path: Path, jumping: Jumping
) -> None:
    now = time.time()
    jumping(itertools.repeat(60 - now))
    cli.ok(*command)
    (run,) = folders(tmp_path)
    assert run.name.startswith("19700101T")
    assert json.loads((run / "run.json").read_text())["created_utc"].startswith("1970-01-01T")
    assert wording(cli.ok(*command).err)
    cli.ok("show", run)
    cli.ok("report", run, "--out", tmp_path / "report")


def test_a_build_at_work_stays_though_the_clock_jumps_ahead(tmp_path: Path) -> None:
    held, left = (tmp_path / f"{native._DRAFTS}{name}" for name in ("held", "left"))
    for folder in (held, left):
        folder.mkdir()
        ago = time.time() - 2 * native._ABANDONED
        os.utime(folder, (ago, ago))

    def clear() -> int:
        native._clear(tmp_path)
        return 0

    with native._at_work(held):
        assert asserting.call(tmp_path / "child", clear).wait().code == 0
        assert held.exists()
    assert not left.exists()
    native._clear(tmp_path)
    assert not held.exists()
