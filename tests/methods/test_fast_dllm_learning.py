"""Block diffusion's loss, against a plain dense forward for each block with a mask written from the definition."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.decoders import loaded
from support.models import supported, tiny_llama, uncompiled
from support.runs import made_up_trajectories
from support.wording import wording
from torch import Tensor

from specbench.common.errors import UsageError
from specbench.methods.fast_dllm import train
from specbench.methods.fast_dllm.learning import Collator, Lesson, Options
from specbench.training.objectives.frozen import Frozen
from specbench.training.objectives.packing import CLEAN, NOISY, Packed
from specbench.training.recipe import Job, Text

VOCAB, MASK, N = 50, 49, 4
#: Prompts that end inside a block and at its end, shorter than a block, and an answer that ends with its block.
TEXTS = [
    Text(
        f"made/{prompt}",
        [1 + (7 * at + prompt) % 40 for at in range(prompt)],
        [2 + 3 * at % 41 for at in range(answer)],
    )
    for prompt, answer in [(6, 11), (8, 7), (3, 1), (1, 7), (5, 4)]
]


def options(**own: Any) -> Options:
    return Options.model_validate({"block_size": N, **own})


def streams(collator: Collator, text: Text) -> list[dict[int, int]]:
    """Noisy streams of a text as they are in its batch: position -> token."""
    packed = Packed(**{name: value for name, value in collator([text]).items() if name != "learns"})
    ids, places, stream = packed.ids[0].tolist(), packed.positions[0].tolist(), packed.stream[0].tolist()
    found: dict[int, dict[int, int]] = {}
    for token, place, number in zip(ids, places, stream, strict=True):
        if number >= NOISY:
            found.setdefault(number, {})[place] = token
    return [found[number] for number in sorted(found)]


def scores(model: Any, ids: list[int], sees: Callable[[int, int], bool]) -> Tensor:
    """Scores of a dense forward over a text, whose row i sees column j if ``sees(i, j)``."""
    mask = torch.tensor([[sees(i, j) for j in range(len(ids))] for i in range(len(ids))])
    found: Tensor = model(torch.tensor([ids]), attention_mask=mask[None, None], use_cache=False).logits[0]
    return found


def block_causal(row: int, column: int) -> bool:
    return column // N <= row // N


def learnt(model: Any, text: Text, noisy: list[dict[int, int]], published: bool) -> Iterator[tuple[bool, Tensor, int]]:
    """(whether a clean row learns it, scores, position) of each token that a text's loss contains.

    Each block is read on its own, after the clean text before it; its rows are read as those of a text.
    """
    ids, prompt = [*text.prompt, *text.answer], len(text.prompt)
    for place in range(prompt, len(ids)):
        if place % N == 0 and (not published or place == prompt):
            yield True, scores(model, ids[:place], block_causal)[-1], place
    for stream in noisy:
        for start in range(prompt // N * N, len(ids), N):
            block = [stream[place] for place in range(start, start + N)]
            found = scores(model, ids[:start] + block, block_causal)
            for place in range(start + 1, start + N + published):
                if prompt <= place < len(ids) and stream.get(place) == MASK:
                    yield False, found[place - 1], place


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_llama(VOCAB).double()


@pytest.mark.parametrize(
    "own",
    [{}, {"ar_weight": 0.5}, {"complementary": False}, {"first_tokens": "noisy"}, {"labels": "target"}],
    ids=lambda own: "-".join(map(str, own.values())) or "default",
)
@torch.no_grad()
def test_the_loss_is_that_of_each_block_alone(own: dict[str, Any], model: Any) -> None:
    how, target = options(**own), tiny_llama(VOCAB, seed=1).double()
    collator = Collator(how, MASK, seed=3)
    total, count, right = 0.0, Counter[bool](), 0
    for text in TEXTS:
        ids = [*text.prompt, *text.answer]
        causal = target(torch.tensor([ids])).logits[0].log_softmax(-1)
        for clean, row, place in learnt(model, text, streams(collator, text), how.first_tokens == "noisy"):
            loss = -row.log_softmax(-1)[ids[place]]
            if how.labels == "target":
                label = causal[place - 1]
                loss = (label.exp() * (label - row.log_softmax(-1))).sum()
            total += float(loss) * (how.ar_weight if clean else 1)
            count[clean] += 1
            right += int(row.argmax()) == ids[place] and not clean
    frozen = Frozen(lambda: nullcontext(target)) if how.labels == "target" else None
    for texts in (TEXTS, TEXTS[::-1]):
        found = Lesson(model, how, frozen)(**collator(texts))
        assert float(found["loss"]) == pytest.approx(total / count.total(), abs=1e-10, rel=1e-10)
        assert float(found["accuracy"]) == pytest.approx(right / count[False])
    if how.complementary and how.first_tokens == "clean":
        assert count.total() == sum(len(text.answer) for text in TEXTS)  # each token is learnt once


def test_complementary_masks_cover_each_answer_token_once() -> None:
    collator, shares = Collator(options(), MASK), []
    for visit in range(200):
        collator.visit = visit
        for text in TEXTS:
            ids, prompt = [*text.prompt, *text.answer], len(text.prompt)
            both = streams(collator, text)
            for place in range(prompt // N * N, -(-len(ids) // N) * N):
                tokens = sorted(stream[place] for stream in both)
                if place < prompt:
                    assert tokens == [ids[place]] * 2
                elif place < len(ids):
                    assert tokens == [ids[place], MASK]
                else:
                    assert tokens == [MASK] * 2  # after the answer's end, in its last block
        first = streams(collator, TEXTS[0])[0]
        shares.append(sum(first[place] == MASK for place in range(8, 12)) / N)
    # A uniform ratio: each number of masks from 0 to N is as frequent.
    assert all(abs(shares.count(number / N) - 200 / (N + 1)) < 25 for number in range(N + 1))
    collator.visit = 0
    again = Collator(options(complementary=False), MASK)
    assert [streams(again, text) for text in TEXTS] == [streams(collator, text)[:1] for text in TEXTS]
    assert streams(Collator(options(), MASK, seed=1), TEXTS[0]) != streams(collator, TEXTS[0])


def test_long_answers_are_cut() -> None:
    collator = Collator(options(max_tokens=10), MASK)
    batch = collator(TEXTS[:1])
    assert int((batch["stream"] == CLEAN).sum()) == 10
    assert [max(stream) for stream in streams(collator, TEXTS[0])] == [11, 11]
    assert collator.size(TEXTS[0]) == batch["ids"].shape[1]


@pytest.mark.parametrize("labels", ["tokens", "target"])
def test_padding_changes_neither_loss_nor_gradients(labels: str) -> None:
    model, how = tiny_llama(VOCAB, tie_word_embeddings=False).double(), options(labels=labels)
    frozen = Frozen(lambda: nullcontext(copy.deepcopy(model))) if labels == "target" else None
    unused = 48  # in no text

    def gradients(multiple: int) -> tuple[float, list[Tensor]]:
        batch = Collator(how, MASK, multiple=multiple)(TEXTS)
        batch["ids"][batch["sample"] < 0] = unused
        model.zero_grad()
        loss = Lesson(model, how, frozen)(**batch)["loss"]
        loss.backward()
        assert not model.get_input_embeddings().weight.grad[unused].any()
        return float(loss.detach()), [parameter.grad.clone() for parameter in model.parameters()]

    loss, plain = gradients(1)
    padded_loss, padded = gradients(64)
    assert padded_loss == pytest.approx(loss, abs=1e-12)
    for one, other in zip(plain, padded, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-10)
    assert any(gradient.any() for gradient in plain)


# The first use of FlexAttention imports and compiles for tens of seconds.
@pytest.mark.parametrize("attention", ["eager", pytest.param("flex_attention", marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", ["qwen2", "gemma3"])  # the second has sliding layers too
@torch.no_grad()
def test_every_attention_gives_the_same_loss(family: str, attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, how = copy.deepcopy(supported(family)), options()
    batch = Collator(how, MASK)(TEXTS)
    expected = Lesson(model, how)(**batch)["loss"]
    model.set_attn_implementation(attention)
    uncompiled(monkeypatch)
    torch.testing.assert_close(Lesson(model, how)(**batch)["loss"], expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_sliding_layers_reach_back_by_positions() -> None:
    model, how = copy.deepcopy(supported("mistral")).double(), options(ar_weight=0)
    reach, text, collator = model.config.sliding_window, TEXTS[0], Collator(options(ar_weight=0), MASK)
    losses = []
    for stream in streams(collator, text):
        for start in range(4, 17, N):
            block = [stream[place] for place in range(start, start + N)]
            ids = [*text.prompt, *text.answer][:start] + block
            found = scores(model, ids, lambda row, column: block_causal(row, column) and column > row - reach)
            losses += [
                -float(found[place - 1].log_softmax(-1)[text.answer[place - 6]])
                for place in range(start + 1, start + N)
                if 6 <= place < 17 and stream[place] == MASK
            ]
    firsts = 3  # positions 8, 12 and 16, which weigh nothing but count
    expected = sum(losses) / (len(losses) + firsts)
    assert float(Lesson(model, how)(**collator([text]))["loss"]) == pytest.approx(expected, rel=1e-10)


def test_a_training_lowers_the_loss_and_leaves_an_adapter(tmp_path: Path) -> None:
    texts = [made_up_trajectories(f"made/{number}", answer=9 + number, vocab=VOCAB - 1) for number in range(6)]
    lines: list[str] = []
    own = {"steps": 40, "batch": 6, "lr": 0.02, "lora_rank": 8, "bf16": False, "log_every": 1}
    how = train.Options.model_validate({"block_size": N, "mask": MASK, **own})
    job = Job(loaded(tiny_llama(VOCAB)), texts, [], tmp_path, 0, lines.append, model="tiny")
    card = train.train(how, job)
    losses = [float(line.split("loss ")[1].split()[0].rstrip(",")) for line in lines if "loss " in line]
    assert len(losses) == 40
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])
    assert card["decoding"] == {"block_size": N, "mask": MASK}
    assert (tmp_path / "adapter" / "adapter_model.safetensors").exists()


def test_a_wrong_or_missing_mask_token_is_refused() -> None:
    target = loaded(tiny_llama(VOCAB))
    named = replace(target, tokenizer=SimpleNamespace(mask_token_id=VOCAB))  # outside the vocabulary
    train.check(train.Options(mask=VOCAB - 1), named)
    with pytest.raises(UsageError, check=wording):
        train.check(train.Options(), named)
    with pytest.raises(UsageError, check=wording):  # neither names one, and there are no special tokens
        train.check(train.Options(), target)
    with pytest.raises(UsageError, check=wording):
        train.check(train.Options(mask=VOCAB), target)
