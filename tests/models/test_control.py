"""Duplicated control tokens are removed, whether template or text wrote the second one; an unused one masks others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.decoders import loaded
from support.models import tiny_llama
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from specbench.common.prompt import Prompt
from specbench.models import control, names
from specbench.models.loaded_model import LoadedModel

BOS, EOS = "<s>", "</s>"
ROLES = ("<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|eot|>", "[INST]", "[/INST]", "<turn>", "</turn>")
_TURN = "{% for m in messages %}"
_END = "{% endfor %}"
_ASKS = "{% if add_generation_prompt %}"

#: Templates in the manner of families of models, in words of our own.
TEMPLATES = {
    "brackets": _TURN + "{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}" + _END,
    "tight brackets": "{{ bos_token }}" + _TURN + "{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% else %}{{ m.content + eos_token }}{% endif %}" + _END,
    "headers": "{{ bos_token }}" + _TURN + "<|user|>{{ m.role }}<|user|>\n\n{{ m.content | trim }}<|eot|>" + _END
    + _ASKS + "<|user|>assistant<|user|>\n\n{% endif %}",
    "im": _TURN + "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n" + _END
    + _ASKS + "<|im_start|>assistant\n{% endif %}",
    "turns": "{{ bos_token }}" + _TURN + "<turn>{{ m.role }}\n{{ m.content | trim }}</turn>\n" + _END
    + _ASKS + "<turn>model\n{% endif %}",
    "roles first": _TURN + "<|{{ m.role }}|>{{ m.content }}{{ eos_token }}" + _END + _ASKS + "<|assistant|>{% endif %}",
    "roles and lines": _TURN + "<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n" + _END
    + _ASKS + "<|assistant|>\n{% endif %}",
    "plain": "{{ bos_token }}" + _TURN + "{{ m.role | capitalize }}: {{ m.content }}\n" + _END + "Assistant:",
}  # fmt: skip


def tokenizer(starts: bool, ends: bool, template: str | None = None) -> PreTrainedTokenizerFast:
    symbols = [EOS, BOS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(BPE(vocab={symbol: at for at, symbol in enumerate(symbols)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(each, special=True) for each in (BOS, EOS, *ROLES)])
    made.post_processor = processors.TemplateProcessing(
        single=f"{BOS if starts else ''} $A {EOS if ends else ''}".strip(), special_tokens=[(BOS, 1), (EOS, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token=BOS, eos_token=EOS, chat_template=template)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return loaded(tiny_llama(400), "tiny", tokenizer(True, False))


def texts() -> Iterator[str]:
    for token in (BOS, EOS, *ROLES):
        yield from (token, f"{token}hello", f"hello{token}", f"{token}{token}hello", f"{token}hello{token}")
    yield from ("hello", "", " <s> hello", "x<s>y")


def doubled(ids: list[int], special: frozenset[int]) -> list[int]:
    return [a for a, b in itertools.pairwise(ids) if a == b and a in special]


@pytest.mark.parametrize("starts", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_no_text_prompt_has_two_in_a_row(model: LoadedModel, starts: bool, ends: bool) -> None:
    mine = replace(model, tokenizer=tokenizer(starts, ends))
    for text in texts():
        whole = mine.tokenizer(text)["input_ids"]
        if not whole:  # refused: no token comes of it
            continue
        ids = mine.encode(Prompt("p", text, False))
        assert not doubled(ids, mine.control_ids), text
        assert [key for key, _ in itertools.groupby(ids)] == [key for key, _ in itertools.groupby(whole)], text


def test_a_start_token_of_the_prompt_is_the_only_one(model: LoadedModel) -> None:
    mine = model.at(model.now)
    assert mine.encode(Prompt("p", "<s>hello", False)) == mine.encode(Prompt("p", "hello", False))
    assert mine.doubles == {1: 1}


@pytest.mark.parametrize("name", [*TEMPLATES, *names.templates()])
@pytest.mark.parametrize("starts", [True, False])
def test_no_chat_prompt_has_two_in_a_row(model: LoadedModel, name: str, starts: bool) -> None:
    template = TEMPLATES[name] if name in TEMPLATES else names.templates()[name].read_text()
    mine = replace(model, tokenizer=tokenizer(starts, False, template))
    for text in texts():
        talks: list[Any] = [(), (("user", text), ("assistant", text))]
        for history, prefill in itertools.product(talks, ("", text)):
            ids = mine.encode(Prompt("p", text, True, prefill=prefill, history=history))
            assert not doubled(ids, mine.control_ids), (text, history, prefill)


def test_two_that_a_template_means_stay(model: LoadedModel) -> None:
    means = "<|eot|><|eot|>" + TEMPLATES["im"]
    mine = replace(model, tokenizer=tokenizer(True, False, means))
    eot = mine.tokenizer.convert_tokens_to_ids("<|eot|>")
    assert mine.encode(Prompt("p", "x", True))[:3].count(eot) == 2
    assert doubled(mine.encode(Prompt("p", "<|im_start|><|im_start|>", True)), mine.control_ids) == [eot]


def test_unknown_words_and_padding_are_no_control_tokens() -> None:
    made = tokenizer(True, True)
    made.add_special_tokens({"unk_token": "<unk>", "pad_token": "<pad>"})
    unknown, pad = made.convert_tokens_to_ids(["<unk>", "<pad>"])
    found = control.control_ids(made)
    assert not found & {unknown, pad}
    assert {0, 1} < found
    made.pad_token = EOS  # of many models the end is also what pads
    assert 0 in control.control_ids(made)
    assert control.without_doubles([7, 7, unknown, unknown, 1, 1, 1], found, dict) == (
        [7, 7, unknown, unknown, 1],
        [1, 1],
    )


def test_a_mask_token_is_special_and_unused() -> None:
    made = tokenizer(True, False, TEMPLATES["im"])
    ids = {each: made.convert_tokens_to_ids(each) for each in (*ROLES, EOS)}
    last = max(ids, key=lambda each: ids[each])
    assert control.mask_token(None, made) == ids[last]
    made.pad_token, made.unk_token = last, "[/INST]"
    assert control.mask_token(None, made) == ids["<turn>"]
    made.mask_token = EOS
    assert control.mask_token(None, made) == ids[EOS]


def test_smollm2_masks_with_a_token_of_no_text(smollm2: LoadedModel) -> None:
    mask = control.mask_token(smollm2.model.config, smollm2.tokenizer)
    weight = smollm2.model.get_input_embeddings().weight.detach()
    written = weight[smollm2.tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])]
    assert smollm2.tokenizer.convert_ids_to_tokens(mask) == "<empty_output>"
    assert weight[mask].isfinite().all()
    assert (written - weight[mask]).norm(dim=1).min() > 0.1
