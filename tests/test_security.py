"""SECURITY.md: what it names is there, and what it says of servers holds for engines as for judges."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.engines import replies, serving
from support.wording import wording

from specbench.backends.streaming import Server
from specbench.common.errors import EngineFault

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


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_the_key_of_an_engine_does_not_follow_a_redirect(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setenv("MY_KEY", "sk-of-mine-1234")
    with serving() as server, serving() as elsewhere:
        server.answer = replies(code, b"", Location=f"{elsewhere.url}/completions")
        with pytest.raises(EngineFault, check=wording):
            next(Server(server.url, 5, "MY_KEY").events("/v1/completions", {}))
        assert len(server.asked) == 1
        assert elsewhere.paths == []
