"""Tasks that run what a model writes, from the command to the verdict on dummy weights, and with answers put in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_data import livecodebench, spider
from support import runs
from support.wording import wording

from specbench.evals.data import DATA_DIR

TINY = ("--model", "config:tiny", "--max-new-tokens", 6, "--method", "jacobi")

RIGHT = {
    "livecodebench": {made.id: f"```python\n{made.right}\n```" for made in livecodebench.MADE},
    "spider": {f"spider/{number}": right for number, (*_, right, _) in enumerate(spider.ASKED)},
}


@pytest.mark.parametrize(("task", "also", "metric"), [
    ("livecodebench", "public", "pass@1"), ("spider", "executes", "execution accuracy"),
])  # fmt: skip
def test_a_run_is_scored_and_right_answers_are_found_right(
    cli: Any, tmp_path: Path, task_data: Path, monkeypatch: pytest.MonkeyPatch, task: str, also: str, metric: str
) -> None:
    monkeypatch.setenv(DATA_DIR, str(task_data))
    folder = cli.made(tmp_path, "run", *TINY, "--task", task, "--limit", 2)
    verdicts = [json.loads(line) for line in (folder / "verdicts.jsonl").read_text().splitlines()]
    assert len(verdicts) == 4, "two prompts, jacobi and ar"
    for verdict in verdicts:
        assert (verdict["passed"], verdict["also"]) == (False, {also: False})
        assert verdict["scorer"]["task"] == task
        assert any("seccomp" in line for line in verdict["scorer"]["isolation"])
    lines = runs.requests_on_disk(folder)
    for line in lines:
        line["text"] = RIGHT[task][line["prompt_id"]]
    (folder / "requests.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    result = cli.ok("score", folder, "--json")
    assert [row["accuracy"]["passed"] for row in json.loads(result.out)["summary"]["rows"]] == [2, 2]
    shown = cli.ok("show", folder, columns=200).out
    assert metric in shown
    assert wording.sentences(" ".join(shown.split()))
    listed = json.loads(cli.ok("list", "tasks", "--json").out)
    assert task in str(listed)
