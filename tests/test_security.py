"""SECURITY.md: what it names is there, and what it says of servers holds for engines as for judges."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "SECURITY.md").read_text()


def test_every_test_that_it_names_is_there() -> None:
    named = re.findall(r"`(tests/[^`]+)`", TEXT)
    assert len(named) > 20
    for name in named:
        assert re.search(r"^def test_", (ROOT / name).read_text(), re.MULTILINE), name


def test_flags_and_variables_that_it_names_are_those_of_the_program() -> None:
    sources = "".join(file.read_text() for file in (ROOT / "specbench").rglob("*.py"))
    for name in re.findall(r"`(--[a-z-]+|SPECBENCH_[A-Z_]+)[ =`]", TEXT):
        assert f'"{name}"' in sources, name
