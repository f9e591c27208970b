"""Warm-up prompts: they differ from every timed prompt, whatever the vocabulary and whatever was asked."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from support import decoders, models
from support.wording import wording

from specbench.common import Prompt, UsageError
from specbench.models.loaded_model import LoadedModel
from specbench.runner.setup.warm_up import warm_up_ids


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
