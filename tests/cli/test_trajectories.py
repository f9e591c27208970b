"""``specbench train --collect``: from prompts or answers to a folder that can be learnt from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.wording import wording

from specbench.training.data.trajectory_folder import read, shard_path


def collect(cli: Any, out: Path, *more: Any) -> Any:
    return cli("train", "--collect", "--model", "config:tiny", "--out", out, "-n", 4, *more)


def test_prompts_become_states(cli: Any, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "made"
    asked = ("--prompts", prompts, "--max-new-tokens", 9, "--limit", 4, "--shard", 2, "--keep-circles", 0)
    result = collect(cli, out, *asked)
    assert result.code == 0, result.err
    assert "4/4 answers" in result.err
    assert wording(result.err)
    assert wording(result.out)
    assert max(map(len, result.out.splitlines())) <= 80
    made = list(read(out))
    assert [(len(each.answer), len(each.blocks)) for each in made] == [(9, 3)] * 4
    again = collect(cli, out, *asked, "--json")
    assert again.code == 0, again.err
    found = json.loads(again.out)
    assert (found["answers"], found["blocks"], found["folder"]) == (4, 12, str(out))
    other = collect(cli, tmp_path / "other", "--answers", out, "--shard", 2, "--keep-circles", 0, "--max-repeats", 3)
    assert other.code == 0, other.err
    assert wording(other.out)
    assert json.loads((tmp_path / "other" / "trajectories.json").read_text())["settings"]["max_repeats"] == 3
    assert list(read(tmp_path / "other")) == made


def test_a_shard_that_is_missing_is_made_again(cli: Any, prompts: Path, tmp_path: Path) -> None:
    asked = ("--prompts", prompts, "--max-new-tokens", 6, "--shard", 2, "--temperature", 1, "--seed", 3)
    assert collect(cli, tmp_path / "a", *asked).code == 0
    kept = shard_path(tmp_path / "a", 1).read_bytes()
    shard_path(tmp_path / "a", 1).unlink()
    result = collect(cli, tmp_path / "a", *asked)
    assert result.code == 0, result.err
    assert wording(result.err)
    assert shard_path(tmp_path / "a", 1).read_bytes() == kept
    refused = collect(cli, tmp_path / "a", *asked, "--init", "pad")
    assert refused.code == 2
    assert wording(refused.error)


def test_answers_of_another_model_are_refused(cli: Any, prompts: Path, tmp_path: Path) -> None:
    result = collect(cli, tmp_path / "out", "--answers", tmp_path)
    assert result.code == 2
    assert wording(result.error)
    assert collect(cli, tmp_path / "a", "--prompts", prompts, "--max-new-tokens", 4).code == 0
    result = collect(cli, tmp_path / "out", "--answers", tmp_path / "a", "--dtype", "bfloat16")
    assert result.code == 2
