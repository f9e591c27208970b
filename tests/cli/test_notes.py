"""What a run says once, and records: of control tokens, stop tokens, penalties, and draft models and heads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import runs
from support.models import byte_tokenizer, save

from specbench.methods.eagle3.config import HeadConfig
from specbench.methods.eagle3.head import DraftHead
from specbench.models.loader import load

ENDS = "{% for m in messages %}[INST]{{ m.content }}<|end|>{% endfor %}"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("good") / "good")


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def noted(cli: Any, model: Path, tmp_path: Path, *more: object, prompt: str = "Hi") -> tuple[list[str], str]:
    """The notes that are recorded, each of which is printed once and in one line; and all that is printed."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f"{json.dumps({'prompt': text})}\n" for text in (prompt, f"{prompt} again")))
    asked = ("run", "--model", model, "--task", "prompts", "--data-file", rows, "--max-new-tokens", 4)
    result = cli.ok(*asked, "--out", tmp_path / "out", *more)
    (folder,) = (tmp_path / "out").glob("[!.]*")
    found: list[str] = runs.config_on_disk(folder).get("notes", [])
    for note in found:
        assert result.err.splitlines().count(note) == 1, result.err
    return found, result.err


def test_nothing_is_said_of_a_model_like_any_other(cli: Any, good: Path, tmp_path: Path) -> None:
    assert noted(cli, good, tmp_path)[0] == []


def test_a_second_start_token_is_taken_out_and_named(cli: Any, tmp_path: Path) -> None:
    made = byte_tokenizer()
    made.add_bos_token = True
    model = save(tmp_path / "starts", made)
    start = {"id": "<s>", "ids": [1], "tokens": ["<s>"]}
    change(model / "tokenizer.json", post_processor={
        "type": "TemplateProcessing", "pair": [], "special_tokens": {"<s>": start},
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    })  # fmt: skip
    (note,), _ = noted(cli, model, tmp_path, prompt="<s>hello")
    assert "<s>" in note
    assert "(1) in 2" in note


def test_a_turn_that_ends_with_no_stop_token_is_named(cli: Any, tmp_path: Path) -> None:
    made = byte_tokenizer(template=ENDS)
    made.add_special_tokens({"additional_special_tokens": ["<|end|>", "[INST]"]})
    (note,), _ = noted(cli, save(tmp_path / "ends", made), tmp_path)
    assert "<|end|>" in note
    assert str(made.convert_tokens_to_ids("<|end|>")) in note
    stops = save(tmp_path / "stops", byte_tokenizer(template=ENDS.replace("<|end|>", "{{ eos_token }}")))
    (tmp_path / "more").mkdir()
    assert noted(cli, stops, tmp_path / "more")[0] == []


def test_penalties_that_no_row_applies_are_named(cli: Any, good: Path, tmp_path: Path) -> None:
    model = tmp_path / "penal"
    shutil.copytree(good, model)
    change(model / "generation_config.json", repetition_penalty=1.3, no_repeat_ngram_size=0, do_sample=True, top_p=0.9)
    (note,), _ = noted(cli, model, tmp_path)
    assert "repetition_penalty=1.3" in note
    assert "top_p=0.9" in note
    assert "no_repeat" not in note


def test_a_draft_model_of_fewer_positions_is_named(cli: Any, good: Path, tmp_path: Path) -> None:
    draft = tmp_path / "short"
    shutil.copytree(good, draft)
    change(draft / "config.json", max_position_embeddings=8)
    (note,), _ = noted(cli, good, tmp_path, "--method", "sps", "--set", f"sps.draft={draft}", prompt="Hi there, you")
    assert "short" in note
    assert "8 positions" in note
    (tmp_path / "more").mkdir()
    assert noted(cli, good, tmp_path / "more", "--method", "sps", "--set", f"sps.draft={good}")[0] == []


@pytest.mark.parametrize("filled", [False, True])
def test_a_head_whose_token_map_is_empty_is_named(filled: bool, cli: Any, good: Path, tmp_path: Path) -> None:
    config = HeadConfig.for_target(load(str(good)).model.config, draft_vocab_size=64)
    head = DraftHead.random(config)
    head.set_draft_ids(torch.arange(64))
    head.save(tmp_path / "head")
    if filled:
        (weights,) = (tmp_path / "head").glob("*.safetensors")
        tensors = load_file(weights)
        save_file({**tensors, "d2t": torch.arange(64) * 2}, weights)
    notes, _ = noted(cli, good, tmp_path, "--method", "eagle3", "--head", tmp_path / "head")
    assert len(notes) == (not filled)
    assert all("d2t" in note and "head" in note for note in notes)
