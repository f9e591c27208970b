"""``--dry-run`` of ``run`` and ``sweep``: a table at once, without torch, and nothing made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

TINY = ("--model", "config:tiny", "--task", "humaneval", "--max-new-tokens", 8)


@pytest.fixture(autouse=True)
def _nothing_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_json_of_a_run(cli: Any) -> None:
    result = cli.ok("run", *TINY, "--method", "lookahead,msn", "--concurrency", 4, "--dry-run", "--json")
    found = json.loads(result.out)
    assert [(cell["label"], cell["rows"], cell["concurrency"]) for cell in found["cells"]] == [
        ("ar", 1, 4), ("lookahead", 56, 4), ("msn", 69, 4),
    ]  # fmt: skip
    assert (found["capacity"], found["steps"]) == (520, "none")


def test_a_load_is_held_against_what_ar_can_finish(cli: Any) -> None:
    """From the datasheet of a card, where each step has a time: sequences over the seconds of an answer."""
    asked = ("run", *TINY, "--gpu", "h100", "--concurrency", 4, "--rate", "2,4-8", "--dry-run")
    found = json.loads(cli.ok(*asked, "--json").out)
    (plain,) = (cell for cell in found["cells"] if cell["label"] == "ar")
    text = " ".join(cli.ok(*asked).out.split())
    assert f"--rate 2,4-8: with 8 tokens an answer, ar can finish {4 / (8 * plain['step_s']):.3g} requests" in text
