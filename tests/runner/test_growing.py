"""Prompts grown to given lengths, with a real tokenizer."""

from __future__ import annotations

from itertools import pairwise

import pytest
from support.wording import wording

from specbench.common import Prompt, UsageError
from specbench.models import LoadedModel
from specbench.planning import parse_contexts
from specbench.runner.growing import grow_prompts, other_prompts

TEXT = "\n".join(f"Line {at}: the council met and voted, {at * 7919 % 97} to nine." for at in range(400))
ASKED = [Prompt("a/0", "What is 2 + 2?", True), Prompt("a/1", "def f(x):\n", False, stops=("\n\n",))]


def test_a_longer_prompt_contains_the_shorter(smollm2: LoadedModel) -> None:
    grown = list(grow_prompts(ASKED, [128, 512, 2048], TEXT, smollm2))
    assert [prompt.id for prompt in grown] == [f"a/{at}@{length}" for at in (0, 1) for length in (128, 512, 2048)]
    for prompt, length in zip(grown, [128, 512, 2048] * 2, strict=True):
        assert length - 4 <= len(smollm2.encode(prompt)) <= length
    for at, asked in enumerate(ASKED):
        texts = [asked.text, *(prompt.text for prompt in grown[3 * at : 3 * at + 3])]
        assert all(longer.endswith(shorter) for shorter, longer in pairwise(texts))
    assert grown[-1].stops == ("\n\n",)


def test_impossible_lengths_are_refused(smollm2: LoadedModel) -> None:
    for lengths, text in (([8], TEXT), ([4096], "short")):
        with pytest.raises(UsageError, check=wording):
            list(grow_prompts(ASKED, lengths, text, smollm2))
    recorded = Prompt("c", "hi", True, messages=({"role": "user", "content": "hi"},))
    with pytest.raises(UsageError, check=wording):
        list(grow_prompts([recorded], [128], TEXT, smollm2))


def test_the_other_prompts_are_the_text() -> None:
    assert other_prompts([*ASKED, Prompt("b", "third", True)], ASKED[:1]) == "def f(x):\n\n\nthird"


def test_lengths_are_parsed() -> None:
    assert parse_contexts("512,1k,32K") == [512, 1024, 32768]
    for wrong in ("", "2k,1k", "1k,1k", "x", "0", "1m"):
        with pytest.raises(UsageError, check=wording):
            parse_contexts(wrong)
