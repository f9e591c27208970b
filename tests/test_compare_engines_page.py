"""The page on comparing engines: its commands run, and those that need an installed engine run where it is."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.wording import wording

from specbench.backends import engines
from specbench.common.errors import EngineFault

PAGE = Path(__file__).parents[1] / "docs" / "compare-engines.md"


def commands(kind: str) -> list[list[str]]:
    """The commands of the page's blocks of one kind: "" runs anywhere."""
    blocks = re.findall(r"```console ?(\w*)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [shlex.split(line[2:])[1:] for found, text in blocks if found == kind for line in text.splitlines()]


def call(argv: list[str], where: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "specbench", *argv], cwd=where, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, f"{argv}: {done.stderr[-2000:]}"
    return done.stdout


def missing(argv: list[str]) -> Iterator[str]:
    rows = argv[argv.index("--method") + 1].split(",")
    for name, mode in (row.split(":") for row in rows if ":" in row):
        backend = engines()[name]
        try:
            backend.version(backend.modes[mode].options())
        except EngineFault:
            yield f"{name} is not installed here"


def test_every_block_has_commands_of_specbench() -> None:
    assert len(commands("")) >= 6
    assert commands("engines")
    assert commands("url")


@pytest.mark.slow
def test_what_needs_nothing_installed_runs_as_it_stands(tmp_path: Path) -> None:
    for argv in commands(""):
        call(argv, tmp_path)
    (run,) = (tmp_path / "results").iterdir()
    assert wording(call(["show", str(run)], tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("argv", commands("engines"), ids=lambda argv: " ".join(argv[1:3]))
def test_what_needs_engines_runs_where_they_are(tmp_path: Path, argv: list[str]) -> None:
    if lacks := [*missing(argv)]:
        pytest.skip("; ".join(dict.fromkeys(lacks)))
    call(argv, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("argv", commands("url"), ids=lambda argv: " ".join(argv[1:3]))
def test_what_names_a_server_of_the_users_is_taken_as_it_is_written(tmp_path: Path, argv: list[str]) -> None:
    """Nobody serves there: what is refused is the connection, by name, and nothing before it."""
    little = ("--model", "config:tiny", "--max-new-tokens", "2", "--out", str(tmp_path))
    called = [sys.executable, "-m", "specbench", *argv, *little]
    done = subprocess.run(called, capture_output=True, text=True, timeout=300)
    row = next(name for name in argv[argv.index("--method") + 1].split(",") if ":" in name)
    assert done.returncode == 7, done.stderr
    assert f"error: {row}: " in done.stderr
