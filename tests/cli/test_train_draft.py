"""``specbench train draft``: what comes of it is a model that ``sps`` drafts with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import models, runs

SMALL = ("--set", "layers=1", "--set", "steps=2", "--set", "batch=2", "--set", "bf16=false", "--set", "k=3")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.save(tmp_path_factory.mktemp("target"))


def test_a_draft_model_by_either_name_drafts(cli: Any, model: Path, prompts: Path, tmp_path: Path) -> None:
    base = ("--model", model, "--prompts", prompts, "--held-out", 2, "--max-new-tokens", 12, *SMALL)
    result = cli.ok("train", "draft", *base, "--out", tmp_path / "t")
    assert f"trained: {tmp_path / 't' / 'draft'}" in result.err.replace("\n", "")
    card = json.loads((tmp_path / "t" / "card.json").read_text())
    assert (card["method"], card["steps"], card["layers"], card["options"]["start"]) == ("sps", 2, 1, "layers")
    again = cli.ok("train", "sps", *base, "--out", tmp_path / "t", "--json")  # the same training
    assert "loss" not in again.err
    assert json.loads(again.out)["after"] == card["after"]
    asked = ("--task", "prompts", "--data-file", prompts, "--max-new-tokens", 8, "--limit", 2)
    draft = f"sps.draft={tmp_path / 't' / 'draft'}"
    made = cli.made(tmp_path / "runs", "run", "--model", model, "--method", "sps", "--set", draft, *asked)
    row = runs.rows_on_disk(made)["sps"]
    assert row["lossless"]["verdict"] == "exact"
    assert runs.config_on_disk(made)["methods"][1]["weights"]["draft"] == "draft"
