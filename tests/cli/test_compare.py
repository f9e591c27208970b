"""``compare`` as people and scripts meet it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
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


@pytest.mark.parametrize("columns", [80, 140])
@pytest.mark.parametrize("extra", [[], ["--prompts"]], ids=["table", "prompts"])
def test_it_is_legible_at_any_width(cli: Any, pair: tuple[Path, Path], columns: int, extra: list[str]) -> None:
    said = cli("compare", *pair, *extra, columns=columns)
    assert (said.code, said.err) == (0, "")
    folders = {str(folder) for folder in pair}
    assert all(len(line) <= columns for line in said.out.splitlines() if not any(f in line for f in folders))
    assert "…" not in said.out
    told = " ".join(said.out.split())
    assert wording(told)
    cells = next(line.split() for line in said.out.splitlines() if line.startswith("B jetspec"))
    assert cells[3] == "0.95"
    assert cells[-1] == "0/12"
    assert len(re.findall(r"^gsm8k/\S+ .* same *$", said.out, re.M)) == (24 if extra else 0)


def test_json_is_all_there_is_on_stdout(cli: Any, pair: tuple[Path, Path]) -> None:
    said = cli("compare", *pair, "--json")
    found = json.loads(said.out)
    assert [row["methods"][0] for row in found["rows"]] == ["ar", "jetspec"]
    assert (found["fail_under"], found["regressions"]) == (None, [])


def test_fail_under_exits_5_and_says_what_was_proven(cli: Any, pair: tuple[Path, Path]) -> None:
    said = cli("compare", *pair, "--fail-under", 0.97)
    assert said.code == 5
    assert said.error.startswith("error: B jetspec has 0.952 [0.952, 0.952] of A's speed, all of it below 0.97")
    assert wording(said.out)
    assert cli("compare", *pair, "--fail-under", 0.95).code == 0
    assert cli("compare", *pair[::-1], "--fail-under", 0.97).code == 0
    gate = cli("compare", *pair, "--fail-under", 0.97, "--over-ar", "--json")
    assert (gate.code, json.loads(gate.out)["regressions"]) == (5, [["jetspec", "jetspec"]])


def test_answers_of_a_token_have_no_speed(cli: Any, tmp_path: Path) -> None:
    for name in ("a", "b"):
        argv = ("--model", "config:tiny", "--method", "jacobi", "--limit", 6, "--max-new-tokens", 1, "--no-score")
        assert cli("run", *argv, "--out", tmp_path / name).code == 0
    pair = [next((tmp_path / name).iterdir()) for name in ("a", "b")]
    said = cli("compare", *pair)
    assert (said.code, said.err) == (0, "")
    assert "nan" not in said.out
    assert wording(said.out)
    found = json.loads(cli("compare", *pair, "--json").out, parse_constant=pytest.fail)
    assert [row["speedup"] for row in found["rows"]] == [None, None]
    assert cli("compare", *pair, "--fail-under", 0.9).code == 2


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["{a}"], "1 to compare; name two to 26 runs"),
        (["{a}", "{b}", "--over-ar"], "add --fail-under SHARE"),
        (["{a}", "{b}:jetspek"], "did you mean jetspec?"),
        (["{a}", "nowhere"], "nowhere is not a run folder"),
    ],
)
def test_what_cannot_be_done_is_said_so(cli: Any, pair: tuple[Path, Path], argv: list[str], expected: str) -> None:
    assert expected in cli.refused(2, "compare", *(arg.format(a=pair[0], b=pair[1]) for arg in argv))


def test_it_works_where_there_is_no_torch(pair: tuple[Path, Path]) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from specbench.cli.app import main; "
        f"sys.exit(main(['compare', {str(pair[0])!r}, {str(pair[1])!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
