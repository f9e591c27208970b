"""The target's answers: what AR decodes, each kept as it ends, and never mixed with others."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from support.decoders import loaded
from support.models import attached, autoregressive, tiny_llama
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.common.prompt import Prompt
from specbench.models.loaded_model import LoadedModel
from specbench.training.data.answers import Asking, ask, hours, read
from specbench.training.recipe import Text, some

PROMPTS = [Prompt(f"set/{text}", text * 3, False) for text in ("ab", "c", "DEF", "!", "xyz")]
ASKING = Asking(10, 2)


@pytest.fixture
def model() -> LoadedModel:
    return loaded(tiny_llama(128))


def test_they_are_greedy_answers_in_the_order_of_the_prompts(model: LoadedModel, tmp_path: Path) -> None:
    progress: list[tuple[int, int]] = []
    texts = ask(model, PROMPTS, ASKING, tmp_path, lambda *at: progress.append(at))
    assert [text.id for text in texts] == [prompt.id for prompt in PROMPTS]
    with attached(model.model, capacity=60) as engine:
        for text, asked in zip(texts, PROMPTS, strict=True):
            assert list(text.prompt) == list(asked.text.encode())
            assert list(text.answer) == autoregressive(engine, list(text.prompt), 10)
    assert progress == [(done, 5) for done in range(6)]
    assert {text.id: text for text in read(tmp_path)} == {text.id: text for text in texts}


def test_an_interrupted_call_goes_on(model: LoadedModel, tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    def cut(done: int, total: int) -> None:
        if done == 2:
            raise Cut

    with pytest.raises(Cut):
        ask(model, PROMPTS, ASKING, tmp_path, cut)
    kept = (tmp_path / "answers.jsonl").read_bytes()
    assert kept.count(b"\n") == 2
    (tmp_path / "answers.jsonl").write_bytes(kept + b'{"id": "set/torn')
    texts = ask(model, PROMPTS, ASKING, tmp_path)
    assert (tmp_path / "answers.jsonl").read_bytes().startswith(kept)
    assert texts == ask(model, PROMPTS, ASKING, tmp_path / "other")
    spent = hours(tmp_path)
    assert spent is not None
    assert spent > 0
    lines = (tmp_path / "answers.jsonl").read_text().splitlines()
    older = {name: value for name, value in json.loads(lines[0]).items() if name != "seconds"}
    (tmp_path / "answers.jsonl").write_text("\n".join([json.dumps(older), *lines[1:]]) + "\n")
    assert hours(tmp_path) is None


def test_answers_made_in_another_way_are_refused(model: LoadedModel, tmp_path: Path) -> None:
    ask(model, PROMPTS[:1], ASKING, tmp_path)
    for asking in (Asking(11, 2), Asking(10, 2, 0.7), Asking(10, 2, seed=1)):
        with pytest.raises(UsageError, check=wording):
            ask(model, PROMPTS, asking, tmp_path)
    assert len(ask(model, PROMPTS, Asking(10, 4), tmp_path)) == 5  # how many at a time changes none of them
    with pytest.raises(UsageError, check=wording):
        read(tmp_path / "nowhere")


def test_an_answer_is_never_taken_for_another_prompts(model: LoadedModel, tmp_path: Path) -> None:
    ask(model, PROMPTS, ASKING, tmp_path)
    changed = [PROMPTS[0], Prompt(PROMPTS[1].id, "another text", False)]
    with pytest.raises(UsageError, check=wording):
        ask(model, changed, ASKING, tmp_path)


def test_sampled_answers_repeat_by_their_seed(model: LoadedModel, tmp_path: Path) -> None:
    def sampled(seed: int, name: str) -> Any:
        return ask(model, PROMPTS, Asking(10, 3, 1.0, seed), tmp_path / name)

    assert sampled(1, "a") == sampled(1, "b")
    assert sampled(1, "a") != sampled(2, "c")


def test_of_fewer_texts_all_are_among_those_of_more() -> None:
    texts = [Text(f"set/{at}", [at], [at]) for at in range(9)]
    drawn = [[text.id for text in some(texts, count, 3)] for count in range(1, 10)]
    assert all(set(fewer) < set(more) for fewer, more in itertools.pairwise(drawn))
    assert drawn[-1] == [text.id for text in texts]
    assert drawn[3] != [text.id for text in some(texts, 4, 4)]
    with pytest.raises(UsageError, check=wording):
        some(texts, 10, 3)
