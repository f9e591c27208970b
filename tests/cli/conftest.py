"""The command line called in this process: importing torch anew for each test would take most of a minute."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
import torch
import typer

from specbench.cli import latest
from specbench.cli.app import main
from specbench.common import registry
from specbench.evals.data import DATA_DIR
from specbench.hardware import environment


@dataclass(frozen=True)
class CommandResult:
    """What a command line answered."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The error line, after checking that it is the only one and the last."""
        lines = self.err.splitlines()
        assert [line for line in lines if line.startswith("error: ")] == lines[-1:], self.err
        return lines[-1]


class Cli:
    """``cli("run", "--limit", 1, columns=140)``; the terminal is 80 columns wide unless said otherwise."""

    def __call__(self, *argv: object, columns: int = 80) -> CommandResult:
        out, err = io.StringIO(), io.StringIO()
        with (
            mock.patch.dict(os.environ, COLUMNS=str(columns)),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = main([str(arg) for arg in argv])
        return CommandResult(code, out.getvalue(), err.getvalue())

    def ok(self, *argv: object, columns: int = 80) -> CommandResult:
        """What succeeds."""
        result = self(*argv, columns=columns)
        assert result.code == 0, result.err
        return result

    def made(self, out: Path, *argv: object, columns: int = 80) -> Path:
        """The only folder in ``out`` after a command that writes there."""
        self.ok(*argv, "--out", out, columns=columns)
        (folder,) = out.iterdir()
        return folder

    def refused(self, code: int, *argv: object) -> str:
        """The error line of what ends with this exit code; what is refused before it began prints nothing else."""
        result = self(*argv)
        assert result.code == code, result.err
        assert result.out == "" or code not in (2, 3)
        return result.error


@pytest.fixture(autouse=True, scope="module")
def _quick_facts() -> Iterator[None]:
    """Half of a short run's time otherwise: git's state, HumanEval+'s data, and a parser for each command line."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv(DATA_DIR, raising=False)  # HumanEval comes from its package, then
        patched.setattr(environment, "git_state", lambda root: ("c" * 40, False))
        patched.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(autouse=True)
def _no_memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test's run is what the developer's next ``latest`` finds."""
    if "remembering" not in request.fixturenames:
        monkeypatch.setattr(latest, "remember", lambda folder: None)


@pytest.fixture
def remembering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are remembered, in a cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """The dummy model gains nothing from a second thread, and loses much where other processes want the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def cli() -> Cli:
    return Cli()


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A file of six prompts to learn from."""
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(f'{{"prompt": "Question {n}: what is {n} times {n}?"}}\n' for n in range(6)))
    return file


LIAR = """
from specbench.decoding.tree import TokenTree
from specbench.methods.ar.decoder import Decoder as Ar, Options

class Sly(tuple):
    # Looks like the last token where it is looked at, so that it is seen by the text that comes of it alone.
    def __getitem__(self, at):
        return super().__getitem__(at) - 1

class Decoder(Ar):
    # Says that the last token was another one, after a few right steps: the target goes on from a text no one wrote.
    steps = 0
    def draft(self):
        self.steps += 1
        tree = TokenTree.chain([self._last])
        if self.steps == 4:
            tree.__dict__["tokens"] = Sly([self._last + 1])
        return tree
"""


@pytest.fixture
def liar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A method of somebody else's package that says it is lossless and is not."""
    package, info = tmp_path / "liar", tmp_path / "liar_method-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text("")
    (package / "decoder.py").write_text(LIAR)
    (package / "method.toml").write_text('title = "Liar"\nsummary = "Says it is lossless"\nlossless = true\n')
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: liar-method\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[specbench.methods]\nliar = liar\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._found.cache_clear()
    yield "liar"
    registry._found.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "liar"]:
        del sys.modules[name]
