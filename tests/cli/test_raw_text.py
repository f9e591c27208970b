"""A run on raw text reports the model's perplexity next to its speeds."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.models.loader import load
from specbench.tasks.raw_text.task import passages

TEXT = " = A Title = \n\nOne two three ,  four five\n six seven eight nine ten eleven twelve thirteen fourteen\n" * 3


def test_perplexity_is_that_of_transformers(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "wiki.txt").write_text(TEXT)
    asked = ("--task", "raw-text", "--data-file", tmp_path / "wiki.txt", "--task-set", "raw-text.words=4")
    cli.ok("run", "--model", "config:tiny", "--method", "pld", *asked, "--max-new-tokens", 9, "--out", tmp_path / "out")
    (folder,) = (tmp_path / "out").glob("[!.]*")
    rows = {row["method"]: row["perplexity"] for row in json.loads((folder / "summary.json").read_text())["rows"]}
    loaded = load("config:tiny")
    model, nats = loaded.model, []
    model.set_attn_implementation("eager")
    for prompt, reference in passages(TEXT, 4):
        before, ids = (loaded.tokenizer(text)["input_ids"] for text in (prompt, prompt + reference))
        ids = ids[: len(before) + 9]
        with torch.inference_mode():
            scores = model(torch.tensor([ids]), use_cache=False).logits[0].double().log_softmax(-1)
        nats += [-float(scores[at - 1, ids[at]]) for at in range(len(before), len(ids))]
    expected = math.exp(math.fsum(nats) / len(nats))
    assert rows == {"ar": pytest.approx(expected, rel=1e-4), "pld": pytest.approx(expected, rel=1e-4)}
    assert "perplexity" in cli.ok("show", folder).out
