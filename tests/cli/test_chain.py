"""Chained problems from the command line: run, scored turn by turn, shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import models, runs
from support.asserting import data_folder


@pytest.fixture(scope="module")
def run(cli: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = data_folder("gsm8k_test.jsonl")
    argv = ("--task", "gsm8k", "--task-set", "gsm8k.chain=2", "--data-dir", folder, "--max-new-tokens", 4)
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    model = models.save(tmp_path_factory.mktemp("model"), models.byte_tokenizer(template=template))
    out = tmp_path_factory.mktemp("runs")
    return Path(cli.made(out, "run", "--model", model, *argv, "--method", "ar,pld", "--limit", 1, "--first"))


def test_each_turn_is_scored_as_its_problem(run: Path) -> None:
    requests = runs.requests_on_disk(run)
    assert [(line["prompt_id"], line["turn"]) for line in requests if line["method"] == "ar"] == [
        ("gsm8k/0+1", 1), ("gsm8k/0+1", 2),
    ]  # fmt: skip
    assert runs.config_on_disk(run)["task"]["options"]["chain"] == 2
    verdicts = [json.loads(line) for line in (run / "verdicts.jsonl").read_text().splitlines()]
    assert {line["request"] for line in verdicts} == {line["request_id"] for line in requests}
    references = {line["request"].split("|")[-1]: line["detail"].split("reference")[1] for line in verdicts}
    assert len({*references.values()}) == 2, "the second turn is held against the second problem's answer"
