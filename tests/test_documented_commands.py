"""The commands of the docs run as they are written; those that need an engine, where it is installed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.backends import engines
from specbench.common import registry
from specbench.common.errors import EngineFault
from specbench.planning.methods import runnable
from specbench.results.schema import BASELINE

DOCS = Path(__file__).parents[1] / "docs"


def commands(kind: str, *pages: str) -> list[list[str]]:
    """The commands of blocks of one kind: "" runs anywhere, "engines" with engines, "url" with a server of the user."""
    text = "".join((DOCS / f"{page}.md").read_text() for page in pages)
    blocks = re.findall(r"```console ?(\w*)\n(.*?)```", text, re.DOTALL)
    return [shlex.split(line[2:])[1:] for found, text in blocks if found == kind for line in text.splitlines()]


def call(argv: list[str], where: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "specbench", *argv]
    return subprocess.run(line, cwd=where, capture_output=True, text=True, timeout=900)


def missing(argv: list[str]) -> bool:
    rows = argv[argv.index("--method") + 1].split(",")
    for name, mode in (row.split(":") for row in rows if ":" in row):
        try:
            engines()[name].version(engines()[name].modes[mode].options())
        except EngineFault:
            return True
    return False


def test_every_method_that_runs_untrained_is_listed() -> None:
    listed = re.findall(r"^\| \[`(\w+)`\]", (DOCS / "no-training.md").read_text(), re.MULTILINE)
    trained = {name for name, card in registry.methods().items() if card.info["trained"]}
    assert sorted(listed) == sorted(set(runnable()) - trained - {BASELINE})


@pytest.mark.slow
@pytest.mark.parametrize("page", ["compare-engines", "no-training"])
def test_what_needs_nothing_installed_runs_as_it_stands(tmp_path: Path, page: str) -> None:
    assert commands("", page)
    for argv in commands("", page):
        done = call(argv, tmp_path)
        assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("argv", commands("engines", "compare-engines"), ids=lambda argv: " ".join(argv[1:3]))
def test_what_needs_engines_runs_where_they_are(tmp_path: Path, argv: list[str]) -> None:
    if missing(argv):
        pytest.skip("an engine is not installed")
    assert call(argv, tmp_path).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("argv", commands("url", "compare-engines"), ids=lambda argv: " ".join(argv[1:3]))
def test_a_server_of_the_users_is_refused_by_its_row(tmp_path: Path, argv: list[str]) -> None:
    """No server runs there, so the connection is refused."""
    little = ("--model", "config:tiny", "--max-new-tokens", "2", "--out", str(tmp_path))
    done = call([*argv, *little], tmp_path)
    row = next(name for name in argv[argv.index("--method") + 1].split(",") if ":" in name)
    assert done.returncode == 7, done.stderr
    assert row in done.stderr
