"""A run over several lengths of the context."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def test_a_run_over_lengths(cli: Any, tmp_path: Path, prompts: Path) -> None:
    context = tmp_path / "context.txt"
    context.write_text("\n".join(f"Line {at}: the council voted, {at * 7919 % 97} to nine." for at in range(400)))
    asked = ["run", "--model", "config:tiny", "--method", "pld", "--task", "prompts", "--data-file", prompts]
    folder = cli.made(
        tmp_path / "out", *asked, "--limit", 2, "--contexts", "512,1k", "--context-file", context, "--max-new-tokens", 4
    )
    rows = json.loads((folder / "summary.json").read_text())["rows"]
    assert [[at["end"] for at in row["contexts"]] for row in rows] == [[512, 1024], [512, 1024]]
    assert json.loads((folder / "run.json").read_text())["task"]["metric"] == ""
    assert "--contexts" in cli.refused(2, *asked, "--context-file", context, "--out", tmp_path)
