"""The documentation: its commands run as they are written, and it names every variable and exit code."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from specbench.backends import engines
from specbench.cli.app import app
from specbench.common import SpecbenchError, registry
from specbench.common.errors import EngineFault
from specbench.planning.methods import runnable
from specbench.results.schema import BASELINE

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    [*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "methods").rglob("*.md"), *(ROOT / "tasks").rglob("*.md")]
)
FENCE = re.compile(r'^```(\w+) ?(\w*)(?: title="([^"]+)")?\n(.*?)^```', re.S | re.M)


def commands(page: Path, kind: str) -> list[list[str]]:
    """The commands of a page's ``console`` blocks of one kind.

    No kind runs anywhere; ``engines`` needs an engine, ``url`` a server, ``network`` a hub or a judge, ``slow`` takes
    minutes, and ``quiet`` depends on the machine.
    """
    blocks = FENCE.findall(page.read_text())
    lines = [
        line for name, found, _, text in blocks if (name, found) == ("console", kind) for line in text.splitlines()
    ]
    return [shlex.split(line[2:])[1:] for line in lines]


def with_commands(kind: str) -> list[Path]:
    return [page for page in DOCS.rglob("*.md") if commands(page, kind)]


def call(argv: list[str], where: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "specbench", *argv]
    return subprocess.run(line, cwd=where, capture_output=True, text=True, timeout=900)


def run_page(page: Path, kind: str, where: Path) -> None:
    """Write the files that a page shows, then run its commands in order."""
    for _, _, file, text in FENCE.findall(page.read_text()):
        if file and "/" not in file:
            (where / file).write_text(text)
    for argv in commands(page, kind):
        done = call(argv, where)
        assert done.returncode == 0, f"{shlex.join(argv)}\n{done.stderr[-2000:]}"


def missing(argv: list[str]) -> bool:
    if argv[0] == "export-model":
        rows = [f"{argv[argv.index('--to') + 1]}:ar"]
    else:
        rows = argv[argv.index("--method") + 1].split(",")
    for name, mode in (row.split(":") for row in rows if ":" in row):
        try:
            engines()[name].version(engines()[name].modes[mode].options())
        except EngineFault:
            return True
    return False


def written_commands(page: Path) -> Iterator[list[str]]:
    """The ``specbench`` lines of all fences of a page, without their comments."""
    for _, _, _, text in FENCE.findall(page.read_text()):
        for line in re.sub(r"\\\n\s*", " ", text).splitlines():
            if found := re.match(r"^(?:\$ )?(?:\S*/)?specbench (\S.*)$", line.strip()):
                yield shlex.split(found[1], comments=True)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if [*written_commands(page)]], ids=lambda page: str(page.relative_to(ROOT))
)
def test_commands_of_pages_have_only_known_options(page: Path) -> None:
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for argv in written_commands(page):
        flags = {flag for option in known[argv[0]].params for flag in [*option.opts, *option.secondary_opts]}
        unknown = {word.partition("=")[0] for word in argv[1:] if word.startswith("--")} - flags
        assert argv[0] == "train" or not unknown, f"{shlex.join(argv)}: {unknown}"


def test_every_method_that_runs_untrained_is_listed() -> None:
    listed = re.findall(r"^\| \[`(\w+)`\]", (DOCS / "results" / "training-free.md").read_text(), re.MULTILINE)
    trained = {name for name, card in registry.methods().items() if card.info["trained"]}
    assert sorted(listed) == sorted(set(runnable()) - trained - {BASELINE})


def test_every_variable_is_documented() -> None:
    sources = [path for folder in ("specbench", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    names = {name for path in sources for name in re.findall(r"\bSPECBENCH_[A-Z]+(?:_[A-Z]+)*\b", path.read_text())}
    documented = (DOCS / "reference" / "environment.md").read_text()
    private = {"SPECBENCH_ENGINE"}  # marks the child processes of an engine
    assert not {name for name in names - private if name not in documented}
    assert "SPECBENCH_DATA" in names


def test_every_exit_code_is_documented() -> None:
    documented = {
        int(code) for code in re.findall(r"^\| (\d+) \|", (DOCS / "reference" / "exit-codes.md").read_text(), re.M)
    }
    kinds = [SpecbenchError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert {kind.exit_code for kind in kinds} | {0, 130, 143} == documented


@pytest.mark.slow
@pytest.mark.parametrize("page", with_commands(""), ids=lambda page: page.stem)
def test_commands_run_as_they_are_written(tmp_path: Path, page: Path) -> None:
    run_page(page, "", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", with_commands("slow"), ids=lambda page: page.stem)
def test_long_commands_run_as_they_are_written(tmp_path: Path, page: Path) -> None:
    run_page(page, "slow", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "argv", commands(DOCS / "guide" / "engines.md", "engines"), ids=lambda argv: " ".join(argv[1:3])
)
def test_commands_with_engines_run_where_they_are(tmp_path: Path, argv: list[str]) -> None:
    if missing(argv):
        pytest.skip("an engine is not installed")
    assert call(argv, tmp_path).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("argv", commands(DOCS / "guide" / "engines.md", "url"), ids=lambda argv: " ".join(argv[1:3]))
def test_a_missing_server_fails_its_row(tmp_path: Path, argv: list[str]) -> None:
    little = ("--model", "config:tiny", "--max-new-tokens", "2", "--out", str(tmp_path))
    done = call([*argv, *little], tmp_path)
    row = next(name for name in argv[argv.index("--method") + 1].split(",") if ":" in name)
    assert done.returncode == 7, done.stderr
    assert row in done.stderr
