"""MSN's batches and loss: clean labels after noisy inputs."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from support.models import tiny_llama
from support.wording import wording
from torch.nn.functional import cross_entropy

from specbench.common.errors import UsageError
from specbench.common.options import parse_options
from specbench.methods.msn.learning import Collator, Lesson, Options
from specbench.methods.msn.noise import lowest, noised
from specbench.training.recipe import Text

TEXTS = [Text("a", [1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11]), Text("b", [12, 13], [14, 15]), Text("c", [16], [17])]


def test_a_batch() -> None:
    batch = Collator(Options(noise_length=3), multiple=8)(TEXTS)
    assert batch["ids"].tolist()[1] == [12, 13, 14, 15] + [0] * 12
    assert batch["ids"].shape == batch["sources"].shape == (3, 16)
    assert batch["prompts"].tolist() == [3, 2, 1]
    assert batch["answers"].tolist() == [8, 2, 1]
    assert batch["lengths"].tolist() == [3, 1, 0]
    assert 3 <= int(batch["starts"][0]) <= 7
    assert int(batch["starts"][1]) == 2
    assert Collator(Options(max_tokens=8))(TEXTS)["answers"].tolist() == [5, 2, 1]


def test_noise_is_drawn_anew_at_each_visit_and_alike_for_a_seed() -> None:
    def drawn(seed: int, visit: int, texts: list[Text]) -> str:
        collator = Collator(Options(), seed)
        collator.visit = visit
        batch = collator(texts)
        return str((batch["starts"][0], batch["sources"][0, :11]))

    assert drawn(0, 3, TEXTS) == drawn(0, 3, TEXTS[:1])
    assert len({drawn(0, visit, TEXTS) for visit in range(5)} | {drawn(1, 0, TEXTS)}) == 6


@pytest.mark.parametrize("place", ["random", "lowest"])
@pytest.mark.parametrize("prompt", [True, False])
@torch.no_grad()
def test_the_loss_is_that_of_clean_labels_after_the_noisy_text(place: str, prompt: bool) -> None:
    model = tiny_llama(20)
    options = Options.model_validate({"noise_length": 3, "place": place, "include_prompt": prompt})
    batch = Collator(options, multiple=16)(TEXTS)
    found = Lesson(model, options)(**batch)
    losses, denoising = [], []
    for row, text in enumerate(TEXTS):
        ids, start = [*text.prompt, *text.answer], int(batch["starts"][row])
        length = int(batch["lengths"][row])
        clean = torch.tensor([ids])
        if place == "lowest":
            each = cross_entropy(model(clean).logits[0, :-1], clean[0, 1:], reduction="none")
            one = (torch.tensor([n]) for n in (len(text.prompt), len(text.answer), length))
            start = int(lowest(torch.cat([torch.zeros(1), each])[None], *one))
        noisy = noised(
            clean, batch["sources"][row : row + 1, : len(ids)], torch.tensor([start]), torch.tensor([length]), False
        )
        assert (noisy != clean).sum() <= length
        each = cross_entropy(model(noisy).logits[0, :-1], clean[0, 1:], reduction="none")
        losses += each[0 if prompt else len(text.prompt) - 1 :].tolist()
        denoising += each[start : start + length].tolist()
    assert float(found["loss"]) == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    assert float(found["denoising"]) == pytest.approx(sum(denoising) / len(denoising), rel=1e-4)


@pytest.mark.parametrize("place", ["random", "lowest"])
@pytest.mark.parametrize("content", ["context", "vocabulary"])
def test_without_noise_it_is_ordinary_fine_tuning(place: str, content: str) -> None:
    """As transformers computes it: labels of the answers alone, a text at a time."""
    options = Options.model_validate({"noise_length": 0, "place": place, "noise_content": content})
    model = tiny_llama(20)
    found = Lesson(model, options)(**Collator(options, vocab_size=20)(TEXTS))
    assert found.keys() == {"loss", "accuracy"}
    found["loss"].backward()
    mine = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    answers = sum(len(text.answer) for text in TEXTS)
    total = 0.0
    for text in TEXTS:
        ids = torch.tensor([[*text.prompt, *text.answer]])
        labels = torch.tensor([[-100] * len(text.prompt) + list(text.answer)])
        loss = model(input_ids=ids, labels=labels).loss * len(text.answer) / answers
        loss.backward()
        total += float(loss.detach())
    assert float(found["loss"].detach()) == pytest.approx(total, rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, mine[name], rtol=1e-3, atol=1e-6)


@torch.no_grad()
def test_noise_from_the_vocabulary_is_learnt_like_noise_from_the_text() -> None:
    model, options = tiny_llama(20), Options(noise_length=3, noise_content="vocabulary")
    batch = Collator(options, vocab_size=20)(TEXTS[:1])
    text, start = TEXTS[0], int(batch["starts"][0])
    ids = torch.tensor([[*text.prompt, *text.answer]])
    noisy = ids.clone()
    noisy[0, start : start + 3] = batch["sources"][0, start : start + 3]
    each = cross_entropy(model(noisy).logits[0, :-1], ids[0, 1:], reduction="none")
    found = Lesson(model, options)(**batch)
    assert float(found["loss"]) == pytest.approx(float(each[len(text.prompt) - 1 :].mean()), rel=1e-4)
    assert float(found["denoising"]) == pytest.approx(float(each[start : start + 3].mean()), rel=1e-4)


def test_noise_from_the_vocabulary_is_any_token_and_copies_nothing() -> None:
    collator, seen = Collator(Options(noise_content="vocabulary"), vocab_size=20), Counter[int]()
    for visit in range(300):
        collator.visit = visit
        seen.update(collator(TEXTS[:1])["sources"][0].tolist())
    assert sorted(seen) == list(range(20))
    assert all(abs(count - 165) < 60 for count in seen.values())  # 3,300 draws
    with pytest.raises(UsageError, check=wording):
        parse_options(Options, {"noise_content": "vocabulary", "in_place": "true"}, "the recipe of msn")
