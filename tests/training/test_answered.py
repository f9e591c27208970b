"""What weights in training write by themselves: loops, agreement running free, and how likely it is to the target."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import prompt, tiny_llama
from support.runs import RESULTS, answers

from specbench.training.card import write_card
from specbench.training.evaluation import answered as module
from specbench.training.evaluation.answered import answered, log_likelihoods
from specbench.training.evaluation.held_out import Figures
from specbench.training.finetuning import Weights
from specbench.training.recipe import Text, WeightOptions

VOCAB = 50
ADAPTERS = sorted((RESULTS.parent / "methods").glob("*/adapters/*/card.json"))


def texts() -> list[Text]:
    return [Text(f"p/{at}", prompt(4 + at, VOCAB), prompt(5 + 3 * at, VOCAB, seed=1)) for at in range(3)]


@torch.inference_mode()
def by_transformers(model: Any) -> float:
    total = 0.0
    for text in texts():
        scores = (
            model(torch.tensor([[*text.prompt, *text.answer]])).logits[0, len(text.prompt) - 1 : -1].log_softmax(-1)
        )
        total += float(scores.gather(1, torch.tensor(text.answer)[:, None]).sum())
    return total / sum(len(text.answer) for text in texts())


def mean(model: Any) -> float:
    return sum(log_likelihoods(model, texts())) / sum(len(text.answer) for text in texts())


@pytest.mark.parametrize("training", [True, False])
def test_the_log_likelihood_is_that_of_transformers_own_log_softmax(
    training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ROWS", 4)  # the answers have 5, 8 and 11 tokens
    model = tiny_llama(VOCAB)
    expected = by_transformers(model)
    model.train(training)
    assert mean(model) == pytest.approx(expected, abs=1e-5)
    assert model.training == training


def test_answers_are_held_against_the_targets_own_as_far_as_these_go() -> None:
    target = [Text("p/0", [1], list(range(25))), Text("p/1", [1, 2], list(range(10)))]  # the second was cut
    records = answers("jf", 2, decode_s=1.0, output_ids=lambda at: [*range(5), *[7] * 20] if at == 0 else [*range(25)])
    found = answered(records, target)
    assert (found.looping, found.loop_share) == (1, 20 / 50)
    assert found.agreement == pytest.approx((5 + 1 + 10) / 35)  # token 7 stands at its place once in the loop
    assert found.common_prefix_tokens == (5 + 10) / 2
    assert [(text.id, list(text.prompt), len(text.answer)) for text in found.texts] == [
        ("p/0", [1], 25), ("p/1", [1, 2], 25),
    ]  # fmt: skip
    assert found.figures() == {
        "looping": 1, "loop_share": 0.4, "distinct_1": 0.62, "distinct_2": 0.625, "distinct_4": 0.6364,
        "agreement": 0.4571, "common_prefix_tokens": 7.5,
    }  # fmt: skip
    assert all(part in found.line() for part in ("45.7%", "1 of 2 answers"))


def test_a_loop_is_likely_and_left_out_of_what_is_held_against_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that stops looping is no worse for it, and the mean over all of its tokens falls."""
    target = [Text(f"p/{at}", [1], list(range(25))) for at in range(3)]
    records = answers("jf", 3, decode_s=1.0, output_ids=lambda at: [7] * 25 if at == 0 else [*range(25)])
    monkeypatch.setattr(module, "log_likelihoods", lambda model, texts: [-1.0, -10.0, -15.0])
    found = answered(records, target).rated(object())
    assert (found.log_likelihood, found.sound_log_likelihood) == (-26 / 75, -25 / 50)
    assert found.figures()["sound_log_likelihood_per_token"] == -0.5
    assert all(part in found.line() for part in ("-0.35", "1 of 3 answers", "-0.50"))
    every = answered(answers("jf", 3, decode_s=1.0, output_ids=lambda at: [7] * 25), target).rated(object())
    assert every.sound_log_likelihood is None
    assert "sound_log_likelihood_per_token" not in every.figures()


@pytest.mark.parametrize("half", [False, True])
def test_target_is_available_with_an_adapter_and_not_with_full_training(half: bool) -> None:
    model = tiny_llama(VOCAB)
    expected = by_transformers(copy.deepcopy(model))
    weights = Weights(model, WeightOptions(lora_rank=4), "tiny", 0, half)
    with torch.no_grad():
        for name, parameter in weights.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.5, generator=torch.Generator().manual_seed(0))
    before = {name: value.clone() for name, value in weights.model.state_dict().items()}
    with weights.as_decoded() as learnt:
        other = mean(learnt)
    with weights.as_before() as target:
        assert mean(target) == pytest.approx(expected, abs=1e-5)
    assert abs(other - expected) > 0.1
    assert all(torch.equal(value, before[name]) for name, value in weights.model.state_dict().items())
    with Weights(tiny_llama(VOCAB), WeightOptions(full=True), "tiny", 0).as_before() as target:
        assert target is None


@pytest.mark.parametrize("card", ADAPTERS, ids=lambda card: card.parts[-4])
def test_cards_are_read_and_written_as_ever(card: Path, tmp_path: Path) -> None:
    made = json.loads(card.read_text())
    for name in ("before", "after"):
        figures = Figures.model_validate(made[name])
        assert figures.model_dump(exclude_none=True) == made[name]
    write_card(tmp_path, made)
    assert json.loads((tmp_path / "card.json").read_text()) == made
    readme = (tmp_path / "README.md").read_text()
    rows = (("agreement", "{:.1%}"), ("log_likelihood_per_token", "{:.2f}"), ("looping", "{}"))
    assert all(f" {shown.format(made['after'][name])} |" in readme for name, shown in rows)
    assert readme == (card.parent / "README.md").read_text()
