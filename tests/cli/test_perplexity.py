"""``specbench quality --text``: a text under a model and what it was made from, and mistakes that load nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from support.models import save, save_adapter
from support.wording import wording

TEXT = "One apple, two apples, three apples.\n" * 3


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def test_an_adapter_stands_next_to_its_base(cli: Any, file: Path, tmp_path: Path) -> None:
    base, adapter = save(tmp_path / "base"), tmp_path / "mine"
    save_adapter(base, adapter)
    windows = ("--context", 32, "--stride", 16)
    asked = ("quality", adapter, "--text", file, *windows)
    result = cli.ok(*asked, "--tokens", tmp_path / "out" / "each.jsonl")
    assert max(map(len, result.out.splitlines())) <= 80
    assert wording.sentences(result.out)  # the last digits of the figures differ between processors
    found = json.loads(cli.ok(*asked, "--json", "--quiet").out)
    mine, theirs = found["models"]
    assert (mine["model"], theirs["model"], found["words"]) == ("mine", "base", 18)
    assert mine["perplexity"] != pytest.approx(theirs["perplexity"], rel=1e-3)
    lines = [json.loads(line) for line in (tmp_path / "out" / "each.jsonl").read_text().splitlines()]
    assert "".join(line["token"] for line in lines if line["model"] == "mine") == TEXT
    for each in (mine, theirs):
        nats = [line["nats"] for line in lines if line["model"] == each["model"]]
        assert len(nats) == each["tokens"] == each["tokens_rated"] == 111
        assert math.fsum(nats) / 111 == pytest.approx(each["nats_per_token"])
    alone = json.loads(cli.ok(*asked, "--json", "--base", "none").out)["models"]
    assert alone == [mine]
    other = json.loads(cli.ok("quality", base, "--text", file, "--base", adapter, *windows, "--json").out)
    assert [each["perplexity"] for each in other["models"]] == [theirs["perplexity"], mine["perplexity"]]


def test_the_first_words_of_a_text(cli: Any, file: Path, tmp_path: Path) -> None:
    base = save(tmp_path / "base")
    asked = ("quality", base, "--text", file, "--base", "none", "--json", "--quiet")
    assert [json.loads(cli.ok(*asked, *more).out)["words"] for more in ((), ("--max-words", 4))] == [18, 4]
    assert json.loads(cli.ok(*asked, "--max-words", 4).out)["bytes"] == len("One apple, two apples,")
    assert "--max-words" in cli.refused(2, "quality", base, "--tasks", "arc_easy", "--max-words", 4)
