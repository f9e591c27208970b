"""``compare`` as people and scripts meet it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import runs
from support.wording import wording


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs; in the second one jetspec is 5 % slower, and its machine another."""
    out = tmp_path_factory.mktemp("compared")

    def elsewhere(run: dict[str, Any]) -> None:
        run["environment"]["cpu"]["model"] = "Another CPU"

    slower = runs.timed(lambda line: 1.05 if line["method"] == "jetspec" else 1.0)
    return runs.derived(out / "before"), runs.derived(out / "after", slower, elsewhere)


def test_json_is_all_there_is_on_stdout(cli: Any, pair: tuple[Path, Path]) -> None:
    result = cli("compare", *pair, "--json")
    found = json.loads(result.out)
    assert [row["methods"][0] for row in found["rows"]] == ["ar", "jetspec"]
    assert (found["fail_under"], found["regressions"]) == (None, [])


def test_fail_under_exits_5_and_says_what_was_proven(cli: Any, pair: tuple[Path, Path]) -> None:
    result = cli("compare", *pair, "--fail-under", 0.97)
    assert result.code == 5
    assert result.error.startswith("error: B jetspec has 0.952 [0.952, 0.952] of A's speed, all of it below 0.97")
    assert wording(result.out)
    assert cli("compare", *pair, "--fail-under", 0.95).code == 0
    assert cli("compare", *pair[::-1], "--fail-under", 0.97).code == 0
    gate = cli("compare", *pair, "--fail-under", 0.97, "--over-ar", "--json")
    assert (gate.code, json.loads(gate.out)["regressions"]) == (5, [["jetspec", "jetspec"]])


@pytest.fixture
def loud(tmp_path: Path) -> Path:
    """A run like ``pair``'s second one, on a machine whose speed drifted."""
    count = iter(range(10**6))
    drifting = runs.timed(lambda line: (1.05 if line["method"] == "jetspec" else 1.0) * (1 + next(count) / 12))
    return runs.derived(tmp_path / "loud", drifting)


def test_a_gate_on_a_disturbed_run_has_its_own_exit_code(cli: Any, pair: tuple[Path, Path], loud: Path) -> None:
    result = cli("compare", pair[0], loud, "--fail-under", 0.97)
    assert result.code == 8
    assert "B (AR's step" in result.error
    assert result.out, "the table comes first"
    data = cli("compare", pair[0], loud, "--fail-under", 0.97, "--json")
    assert (data.code, json.loads(data.out)["regressions"]) == (8, None)
    gate = cli("compare", pair[0], loud, "--fail-under", 0.5, "--over-ar")
    assert gate.code == 0
    assert gate.err.startswith("warning: B (AR's step")
