"""States of packed texts: each stream is what the model itself makes of that stream's text alone."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from support.models import SUPPORTED, supported, tiny_llama, uncompiled
from support.wording import wording
from torch import Tensor

from specbench.common import UsageError
from specbench.models.loaded_model import LoadedModel
from specbench.training.objectives.attention_mask import AttentionMask
from specbench.training.objectives.packing import CLEAN, NOISY, Packed, Sample, pack
from specbench.training.objectives.student import Student

REFUSED = ("gemma2", "llama4")


def texts(vocab: int) -> list[Sample]:
    draw = torch.Generator().manual_seed(3)

    def ids(count: int) -> list[int]:
        return torch.randint(1, vocab, (count,), generator=draw).tolist()

    return [Sample(ids(5), ids(11), [ids(11)], 4), Sample(ids(3), ids(4), [ids(4)], 4)]


def of_stream(packed: Packed, states: Tensor, at: int, stream: int) -> Tensor:
    """States [tokens, H] of the prompt and one stream of sample ``at``, by position."""
    kept = (packed.sample == at) & ((packed.stream == stream) | (packed.stream < CLEAN))
    return states[kept][packed.positions[kept].argsort()]


def plain(model: Any, ids: list[int]) -> Tensor:
    found: Tensor = model.get_decoder()(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0]
    return found


@pytest.mark.parametrize("family", sorted({*SUPPORTED} - {*REFUSED}))
@torch.no_grad()
def test_clean_and_noisy_streams_are_causal_texts(family: str) -> None:
    model, samples = supported(family), texts(90)
    for length in (0, 64):  # apart, and together in one sequence
        packed = pack(samples, length)
        states = Student(model).states(packed)
        for at, sample in enumerate(samples):
            for stream, answer in ((CLEAN, sample.answer), (NOISY, sample.noisy[0])):
                expected = plain(model, [*sample.prompt, *answer])
                found = of_stream(packed, states, at, stream)
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", REFUSED)
def test_a_model_whose_scores_or_layers_are_of_another_kind_is_refused(family: str) -> None:
    with pytest.raises(UsageError, check=wording):
        Student(supported(family))


@pytest.mark.parametrize("window", [1, 2])
@torch.no_grad()
def test_after_a_window_noisy_blocks_follow_the_clean_text(window: int) -> None:
    model = supported("qwen3")
    sample = texts(90)[0]
    packed = pack([sample])
    noisy = of_stream(packed, Student(model).states(packed, partial(AttentionMask, window=window)), 0, NOISY)
    for block in range(3):
        first, start, end = block // window * window * 4, block * 4, min(11, block * 4 + 4)
        text = [*sample.prompt, *sample.answer[:first], *sample.noisy[0][first:end]]
        torch.testing.assert_close(noisy[5 + start : 5 + end], plain(model, text)[5 + start :], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_on_real_weights_a_block_without_noise_says_what_the_clean_one_says(smollm2: LoadedModel) -> None:
    ids = smollm2.tokenizer("Natalia sold clips to 48 of her friends in April, and half as many in May.")["input_ids"]
    prompt, answer = ids[:7], ids[7:]
    noisy = [*answer[:4], *answer[:4], *answer[8:]]  # the second of its blocks is wrong
    packed = pack([Sample(prompt, answer, [noisy], 4)])
    student = Student(smollm2.model)
    scores = student.scores(student.states(packed)[0])
    expected = smollm2.model(torch.tensor([ids])).logits[0]
    clean = of_stream(packed, scores[None], 0, CLEAN)
    torch.testing.assert_close(clean, expected, rtol=1e-3, atol=1e-3)
    assert clean.argmax(-1).equal(expected.argmax(-1))
    before = slice(len(prompt), len(prompt) + 4)
    torch.testing.assert_close(of_stream(packed, scores[None], 0, NOISY)[before], clean[before], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("attention", ["eager", "flex_attention"])
@torch.no_grad()
def test_every_attention_that_takes_a_mask(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(supported("gemma3"))  # with sliding and full layers
    packed = pack(texts(90), 64)
    student = Student(model)
    expected = student.states(packed)
    model.set_attn_implementation(attention)
    uncompiled(monkeypatch)
    found = student.states(packed)
    used = packed.sample >= 0
    torch.testing.assert_close(found[used], expected[used], rtol=1e-4, atol=1e-4)


def test_an_adapter_is_seen_through() -> None:
    import peft

    bare = tiny_llama(97)
    packed = pack(texts(90))
    expected = Student(bare).states(packed).detach()
    model = peft.get_peft_model(copy.deepcopy(bare), peft.LoraConfig(r=2, target_modules="all-linear"))
    student = Student(model)
    states = student.states(packed)
    torch.testing.assert_close(states, expected)  # an adapter begins as nothing
    student.scores(states[0]).sum().backward()
    gradients = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert gradients
    assert all("lora_B" in name for name in gradients)  # A's gradient goes through B, which is still zero
    assert all(p.grad is None for name, p in model.named_parameters() if "lora_" not in name)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.1)
    assert not torch.allclose(student.states(packed), expected)
