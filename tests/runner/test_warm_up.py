"""Warm-up prompts: they differ from every timed prompt, whatever the vocabulary and whatever was asked."""

from __future__ import annotations

import itertools
import json
import string
from pathlib import Path
from typing import Any

import pytest
import torch
from support import decoders, models
from support.wording import wording

from specbench.cli.app import main
from specbench.common import Prompt, UsageError
from specbench.models.loader import LoadedModel, load
from specbench.runner.loop import Request
from specbench.runner.methods import plan_methods
from specbench.runner.session import Session
from specbench.runner.stop import StopRule
from specbench.runner.warm_up import warm_up_ids


class Words:
    """A tokenizer of few tokens, or of none."""

    chat_template = None

    def __init__(self, size: int) -> None:
        self._size = size

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) % self._size for letter in text] if self._size else []}


def model(vocabulary: int, tokens: int | None = None) -> LoadedModel:
    """A model of a vocabulary; its tokenizer makes fewer ``tokens``."""
    made = decoders.loaded(models.tiny_llama(8), tokenizer=Words(vocabulary if tokens is None else tokens))
    head = torch.nn.Linear(32, vocabulary, bias=False)
    made.model.get_output_embeddings = lambda: head
    return made


@pytest.mark.parametrize("vocabulary", [1, 2, 3, 40])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_it_differs_from_all_prompts(vocabulary: int, length: int) -> None:
    every = [*itertools.islice(itertools.product(range(vocabulary), repeat=length), 300)]
    for tokens in (0, vocabulary):
        asked = model(vocabulary, tokens)
        for timed in (every, every[:-1], every[:1], [], [*every, (0,) * (length + 1)]):
            ids = warm_up_ids(asked, length, timed)
            assert tuple(ids) not in timed
            assert all(0 <= token < vocabulary for token in ids)
            assert len(ids) == length or len(timed) >= vocabulary**length


def test_it_is_the_tools_own_text_where_that_is_free() -> None:
    asked = model(300)
    first = warm_up_ids(asked, 40, [])
    assert bytes(first).startswith(b"A harbour pilot")
    assert warm_up_ids(asked, 40, [first])[:-1] == first[:-1]


@pytest.mark.parametrize("chat", [False, True])
def test_a_prompt_without_tokens_is_named(chat: bool) -> None:
    asked = model(8, 0)
    asked.tokenizer.apply_chat_template = lambda turns, **how: ""
    with pytest.raises(UsageError, check=wording):
        asked.encode(Prompt("third", "text", chat))


PRINTABLE = string.ascii_letters + string.digits + string.punctuation
UNICODE = "\x00\x7f\xa0äßİŁя中日ア한กअ‍​‮﷽😀🏳️‍🌈\ud7ff�"


def asked_one_by_one(model_name: str, prompts: list[str], tmp_path: Path, capsys: Any) -> dict[str, int]:
    """Prompt -> exit code of a run on it alone; an error is one line."""
    codes = {}
    for number, prompt in enumerate(prompts):
        data = tmp_path / "one.jsonl"
        data.write_text(json.dumps({"prompt": prompt}) + "\n")
        command = ["run", "--model", model_name, "--method", "ar", "--task", "prompts", "--data-file", str(data)]
        code = main([*command, "--max-new-tokens", "2", "--out", str(tmp_path / str(number))])
        errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert len(errors) == (code != 0), (prompt, code, errors)
        codes[prompt] = code
    return codes


def test_short_prompts_run_or_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codes = asked_one_by_one("config:tiny", ["A", "~", "word", "ä", ""], tmp_path, capsys)
    assert codes == {"A": 0, "~": 0, "word": 0, "ä": 0, "": 2}


def test_all_letters_are_asked_in_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every one-letter prompt is timed here, so that the warm-up has to be another one."""
    data = tmp_path / "letters.jsonl"
    data.write_text("".join(json.dumps({"prompt": letter}) + "\n" for letter in PRINTABLE + "äя中"))
    command = ["run", "--model", "config:tiny", "--method", "ar", "--task", "prompts", "--data-file", str(data)]
    assert main([*command, "--max-new-tokens", "1", "--out", str(tmp_path / "runs")]) == 0


@pytest.mark.slow
def test_letters_of_the_default_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every letter, raw and as a chat, is decoded by a session of its own warm-up; the letter A by the command, too."""
    asked = load("smollm2-135m", device="cpu")
    texts = [*PRINTABLE, *UNICODE, "word", "harbour", "A harbour pilot", ""]
    with Session(asked, plan_methods(["ar"], []), capacity=64) as session:
        (plain,) = session.methods
        for text, chat in itertools.product(texts, (False, True)):
            try:
                ids = asked.encode(Prompt("only", text, chat))
            except UsageError:
                assert (text, chat) == ("", False)
                continue
            warm = warm_up_ids(asked, len(ids), [ids])
            assert warm != ids
            rule = StopRule(asked.stop_ids, (), 1, asked.decode)
            both = [Request(name, 0, each, rule) for name, each in (("warm", warm), ("timed", ids))]
            assert [record.output_tokens for record in session.decode(plain, both)] == [1, 1]
    assert asked_one_by_one("smollm2-135m", ["A"], tmp_path, capsys) == {"A": 0}
