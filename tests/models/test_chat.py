"""Chat templates of strangers: what transformers writes of them, within limits of time, memory and length."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.models import byte_tokenizer, save
from support.wording import wording
from transformers import PreTrainedTokenizerFast

from specbench.common.errors import UsageError
from specbench.common.prompt import Prompt
from specbench.models import chat, names
from specbench.models.chat import TemplateFault, render
from specbench.models.loaded_model import LoadedModel
from specbench.models.loader import load

TALK = [
    {"role": "user", "content": "1+1?\n é\u2028"},
    {"role": "assistant", "content": " two "},
    {"role": "user", "content": "<s>&\ud800"},
]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] }}\n{{ m.content | trim }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    "{{ strftime_now('%Y') | length }}{{ messages | tojson }}"
)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer(template=CHATML)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A child with a second of time, begun anew before and after."""
    monkeypatch.setattr(chat, "SECONDS", 1)
    chat._running.clear()
    yield
    chat._running.clear()


@pytest.mark.parametrize("template", [CHATML, *(file.read_text() for file in names.templates().values())])
def test_it_writes_what_transformers_writes(template: str, tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = template
    hows: list[dict[str, Any]] = [{}, {"add_generation_prompt": True}, {"continue_final_message": True}]
    for turns in (TALK, TALK[:1]):
        for how in hows:
            assert render(tokenizer, turns, **how) == tokenizer.apply_chat_template(turns, tokenize=False, **how)


MEMORY = "more memory than a text needs"
ATTACKS = {
    "{{ 'a' * 10**10 }}": MEMORY,
    "{{ 'a' | center(10**10) }}": MEMORY,
    "{{ '%10000000000d' % 1 }}": MEMORY,
    "{{ '{:>10000000000}'.format(1) }}": MEMORY,
    "{{ 'a' * 9000000 }}": "it writes 9,000,000 letters, more than a prompt has",
    "{% for i in range(10**9) %}x{% endfor %}": "Range too big",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "recursion",
    "{{ " + "(" * 5000 + " }}": "recursion",
    "{% if 1 %}" * 3000: "recursion",
    "{{ messages.__class__.__mro__ }}": "unsafe",
    "{{ 1 / 0 }}": "division by zero",
    "{{ raise_exception('a\nb') }}": "a b",
    "{% nonsense %}": "unknown tag",
}


@pytest.mark.parametrize("template", ATTACKS)
def test_what_takes_too_much_is_a_sentence(template: str, tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = template
    began = time.monotonic()
    with pytest.raises(TemplateFault, check=wording) as raised:
        render(tokenizer, TALK[:1])
    assert "\n" not in str(raised.value)
    assert time.monotonic() - began < 10
    tokenizer.chat_template = "{{ messages[0].role }}"
    assert render(tokenizer, TALK[:1]) == "user"  # and the next one is served


NESTED = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def test_an_endless_template_is_stopped(short: None, tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = NESTED
    with pytest.raises(TemplateFault, check=wording):
        render(tokenizer, TALK[:1])
    tokenizer.chat_template = CHATML
    for _ in range(2):  # its time begins anew with each text
        assert render(tokenizer, TALK[:1]) == tokenizer.apply_chat_template(TALK[:1], tokenize=False)


def test_a_prompt_names_the_model_whose_template_it_is(tmp_path: Path) -> None:
    loaded: LoadedModel = load(str(save(tmp_path / "toy", byte_tokenizer(template=CHATML))))
    assert loaded.tokenizer.decode(loaded.encode(Prompt("p", "Hi", chat=True))).startswith("<|im_start|>user\nHi</s>")
    assert loaded.write_chat(TALK[:1]).startswith("<|im_start|>user\n")
    loaded.tokenizer.chat_template = "{{ 'a' * 10**10 }}"
    with pytest.raises(UsageError, check=wording):
        loaded.encode(Prompt("p", "Hi", chat=True))
    with pytest.raises(UsageError, check=wording):
        loaded.write_chat(TALK[:1])
