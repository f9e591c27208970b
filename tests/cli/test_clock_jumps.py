"""A clock that jumps: it decides what time is written on a run, and nothing that is waited for, measured or kept."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import specbench

#: Where the wall clock is read, and what for; all else that takes time goes by clocks that never jump.
READS = {
    "common/files.py": "name of a folder",
    "models/chat.py": "in a prompt of who has no run",
    "models/loaded_model.py": "in the prompts of a run, once",
    "runner/setup/calibration.py": "written next to stored times",
    "runner/config.py": "written in a run",
    "sweeps/driver.py": "written in a sweep",
}

TIMES = {"time", "time_ns", "localtime", "gmtime", "ctime", "strftime", "asctime", "CLOCK_REALTIME"}
DATES = {"now", "utcnow", "today"}

MAYBE = re.compile(rf"\b({'|'.join(sorted(TIMES | DATES))})\b|from time import")  # parsing every source takes seconds


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
