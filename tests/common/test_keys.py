"""A key in the environment: named by its variable alone, and nothing that is started gets it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.asserting import refusal

from specbench.backends.openai import OpenAIOptions
from specbench.backends.vllm_options import Plain
from specbench.common import keys
from specbench.common.child import Child
from specbench.common.errors import UsageError
from specbench.common.options import parse_options


@pytest.fixture(autouse=True)
def _none_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_named", set())


@pytest.mark.parametrize("options", [OpenAIOptions, Plain])
def test_a_child_gets_no_key(options: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET_KEY", "sk-1234567890")
    monkeypatch.setenv("OTHER_THING", "kept")
    assert keys.environment()["MY_SECRET_KEY"] == "sk-1234567890", "before anybody has named it"
    parse_options(options, {"api_key_env": "MY_SECRET_KEY"}, "it")
    found = tmp_path / "found"
    child = Child([sys.executable, "-c", f"import os; open({str(found)!r}, 'w').write(repr(dict(os.environ)))"])
    try:
        child.process.wait(60)
    finally:
        child.close()
    assert "sk-1234567890" not in found.read_text()
    assert "kept" in found.read_text()


@pytest.mark.parametrize("options", [OpenAIOptions, Plain])
@pytest.mark.parametrize("given", ["sk-1234567890", "my_key", "A B", "A\nB", "9A", "A" * 50])
def test_what_may_be_the_key_itself_is_refused_and_not_shown(options: type, given: str) -> None:
    result = refusal(UsageError, parse_options, options, {"api_key_env": given}, "it")
    assert given not in result
    assert "name" in result


@pytest.mark.parametrize("key", ["", " \t", "sk-se\ncret", "sk-secret\n", "sk-sécret", "abc"])
def test_what_no_header_holds_is_refused_and_not_shown(key: str) -> None:
    result = refusal(UsageError, keys.Secret, key)
    assert not key.strip() or f" {key.strip()}" not in result


def test_key_is_removed_from_texts() -> None:
    secret = keys.Secret("sk-a/B.c")
    assert secret.scrub("Bearer sk-a/B.c, SK-A/B.C: sk-a/Bxc") == "Bearer [key], [key]: sk-a/Bxc"
    assert "sk-" not in f"{secret!r} {secret}"
