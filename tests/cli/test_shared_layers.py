"""Models whose last layers read the keys and values of others, and one whose positions end with the run's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support import runs
from support.models import REFUSED, build, byte_tokenizer
from support.wording import wording


def saved(recipe: Any, folder: Path, **options: Any) -> Path:
    config, model, given = recipe
    build((config, model, {**given, "vocab_size": 320, **options})).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def asked(tmp_path: Path, *prompts: str) -> tuple[object, ...]:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f"{json.dumps({'prompt': prompt})}\n" for prompt in prompts))
    return ("--task", "prompts", "--data-file", rows, "--out", tmp_path / "out")


def test_the_last_positions_of_a_table_are_used(cli: Any, tmp_path: Path) -> None:
    model = saved(REFUSED["learned positions"][0], tmp_path / "gpt2", n_positions=128)
    run = ("run", "--model", model, *asked(tmp_path, "p" * 88), "--method", "jacobi,recycling")
    cli.ok(*run, "--max-new-tokens", 40)
    (folder,) = (tmp_path / "out").glob("[!.]*")
    assert {row["lossless"]["verdict"] for row in runs.summary_on_disk(folder)["rows"]} == {"exact"}
    assert {line["prompt_tokens"] for line in runs.requests_on_disk(folder)} == {88}
    assert "128" in cli.refused(2, *run, "--max-new-tokens", 41)


def test_what_cannot_be_run_is_one_sentence(cli: Any, tmp_path: Path) -> None:
    model = saved(REFUSED["window in the mask only"][0], tmp_path / "masked")
    result = cli.refused(2, "run", "--model", model, *asked(tmp_path, "p" * 40), "--max-new-tokens", 8)
    assert wording(result)
    assert not (tmp_path / "out").exists() or not [*(tmp_path / "out").glob("[!.]*")]
