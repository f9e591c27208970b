"""The page on decoders without training: its commands run, and it lists the methods that need none, by the registry."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.common import registry
from specbench.results.schema import BASELINE
from specbench.runner.methods import runnable

PAGE = Path(__file__).parents[1] / "docs" / "no-training.md"


def commands() -> list[list[str]]:
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [shlex.split(line[2:])[1:] for text in blocks for line in text.splitlines()]


def test_it_lists_every_method_that_runs_untrained_and_no_other() -> None:
    listed = re.findall(r"^\| \[`(\w+)`\]", PAGE.read_text(), re.MULTILINE)
    trained = {name for name, card in registry.methods().items() if card.info["trained"]}
    assert sorted(listed) == sorted(set(runnable()) - trained - {BASELINE})


@pytest.mark.slow
@pytest.mark.parametrize("argv", commands(), ids=lambda argv: " ".join(argv[:3]))
def test_its_commands_run(tmp_path: Path, argv: list[str]) -> None:
    if argv[0] == "show":
        argv = ["show", str(max((Path(__file__).parents[1] / "results").glob("2*")))]
    done = subprocess.run(
        [sys.executable, "-m", "specbench", *argv, *(["--out", str(tmp_path)] if argv[0] == "run" else [])],
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
