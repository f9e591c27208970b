"""On-policy distillation: whose answers are learnt from, with which weights they were made, and what of them."""

from __future__ import annotations

import copy
import importlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.decoders import loaded
from support.models import tiny_llama
from support.runs import made_up_trajectories
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.engine.sampler import Sampling
from specbench.training.finetuning import Weights
from specbench.training.loop import on_policy
from specbench.training.loop.on_policy import OnPolicy, own_answers
from specbench.training.loop.order import Batches
from specbench.training.objectives.distances import forward_kl, reverse_kl
from specbench.training.objectives.distillation import DistillationLesson
from specbench.training.objectives.frozen import Frozen
from specbench.training.recipe import Job, Text, WeightOptions

VOCAB = 50
PARTS: dict[str, Any] = {
    "steps": 8, "batch": 2, "lr": 1e-2, "lora_rank": 4, "log_every": 1, "save_every": 2, "bf16": False,
    "on_policy": 0.5, "on_policy_every": 3,
}  # fmt: skip


class Cut(Exception):
    """The process ends here."""


def texts() -> list[Any]:
    return [made_up_trajectories(f"made/{number}", answer=9 + number, vocab=VOCAB) for number in range(7)]


def job(out: Path, say: Callable[[str], None] = lambda line: None, aside: int = 0) -> Job:
    known = texts()
    return Job(loaded(tiny_llama(VOCAB)), known[aside:], known[:aside], out, 0, say, model="tiny")


def train(method: str, options: dict[str, Any], job: Job) -> Any:
    recipe = importlib.import_module(f"specbench.methods.{method}.train")
    return recipe.train(recipe.Options(**options), job)


def weights_of(out: Path) -> dict[str, torch.Tensor]:
    return load_file(next(out.glob("*/*model.safetensors")))


def rounds(out: Path) -> dict[str, list[dict[str, Any]]]:
    found = sorted((out / "on_policy").glob("*.jsonl"))
    return {path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in found}


@torch.inference_mode()
def by_transformers(model: Any, prompt: Sequence[int], tokens: int) -> list[int]:
    ids = list(prompt)
    for _ in range(tokens):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("full", [True, False])
def test_answers_of_a_round_are_those_of_the_weights_at_its_first_step(
    full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bool] = []

    def checked(target: Any, model: Any, asked: Sequence[Text], sampling: Sampling, budget: int) -> Any:
        assert budget == 15  # the longest answer's
        copied = copy.deepcopy(model).eval()
        found = own_answers(target, model, asked, sampling, budget)
        assert {name: list(ids) for name, ids in found.items()} == {
            text.id: by_transformers(copied, text.prompt, budget) for text in asked
        }
        own = [value for name, value in copied.named_parameters() if "lora_" not in name]
        made.append(all(torch.equal(a, b) for a, b in zip(own, base.parameters(), strict=True)))
        return found

    base = tiny_llama(VOCAB)
    monkeypatch.setattr(on_policy, "own_answers", checked)
    options = {**PARTS, "full": full, "on_policy": 1, "on_policy_temperature": 0, "on_policy_every": 4}
    card = train("cllm", options, job(tmp_path))
    assert made == [True, False]  # nothing was learnt before the first step
    written = rounds(tmp_path)
    assert list(written) == ["0000000", "0000004"]
    assert card["answer_tokens"] == 0
    assert card["own_answers"]["answers"] == 14  # 4 batches of each visit of 7 texts, of which 2 visits are made
    assert card["own_answers"]["tokens"] == 14 * 15
    assert wording(next(tmp_path.glob("*/README.md")).read_text())


@pytest.mark.parametrize(
    ("method", "own"),
    [("cllm", {"full": True, "accumulation": 2}), ("jf", {"lora_dropout": 0.3}), ("msn", {"noise_length": 3})],
)
def test_an_interrupted_training_takes_the_same_steps(method: str, own: dict[str, Any], tmp_path: Path) -> None:
    def cut(line: str) -> None:
        if line.startswith("step 5/"):
            raise Cut

    options = {**PARTS, **own}
    card = train(method, options, job(tmp_path / "whole"))
    with pytest.raises(Cut):
        train(method, options, job(tmp_path / "parts", cut))
    before = rounds(tmp_path / "parts")
    assert list(before) == ["0000000", "0000003"]
    printed: list[str] = []
    assert train(method, options, job(tmp_path / "parts", printed.append))["own_answers"] == card["own_answers"]
    assert printed[0].endswith("checkpoint-4")
    one, other = weights_of(tmp_path / "whole"), weights_of(tmp_path / "parts")
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert rounds(tmp_path / "whole") == rounds(tmp_path / "parts")
    assert {name: rounds(tmp_path / "whole")[name] for name in before} == before


def test_what_was_sampled_is_on_disk_before_it_is_learnt_from_and_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[bool] = []
    own = DistillationLesson.forward

    def forward(self: Any, own_: Any = None, **batch: Any) -> Any:
        there.append(bool(rounds(tmp_path)))
        return own(self, batch.pop("own", own_), **batch)

    monkeypatch.setattr(DistillationLesson, "forward", forward)

    def cut(line: str) -> None:
        if line.startswith("step 5/"):
            raise Cut

    options = {**PARTS, "on_policy": 1}
    with pytest.raises(Cut):
        train("cllm", options, job(tmp_path, cut))
    assert there
    assert all(there)
    path = tmp_path / "on_policy" / "0000003.jsonl"
    rows = path.read_text()
    path.write_text(rows[:20] + "\n")
    with pytest.raises(UsageError, check=wording):
        train("cllm", options, job(tmp_path))
    path.write_text(rows.partition("\n")[2])  # a row short
    with pytest.raises(UsageError, check=wording):
        train("cllm", options, job(tmp_path))
    path.unlink()
    with pytest.raises(UsageError, check=wording):
        train("cllm", options, job(tmp_path))
    path.write_text(rows)
    train("cllm", options, job(tmp_path))


def test_the_share_is_that_of_batches_and_the_rest_is_learnt_as_ever(tmp_path: Path) -> None:
    recipe = importlib.import_module("specbench.methods.cllm.train")
    met = texts()

    def shared(share: float, seed: int = 0) -> list[bool]:
        options = recipe.Options(on_policy=share)
        made = Job(loaded(tiny_llama(VOCAB)), met, [], tmp_path, seed, lambda line: None)
        own = OnPolicy(options, made, Batches(met, lambda text: 1, options, seed), lambda: None)  # type: ignore[arg-type, return-value]
        batch = own.collating(lambda visit, texts: "usual")
        found = [batch(visit, [text]) for visit in range(60) for text in met]
        assert all(each == "usual" or met[int(each["own"])] in met for each in found)
        return [each != "usual" for each in found]

    assert not any(shared(0))
    assert all(shared(1))
    some = shared(0.3)
    assert abs(sum(some) / len(some) - 0.3) < 0.07
    assert some == shared(0.3) != shared(0.3, seed=1)
    assert all(one <= other for one, other in zip(some, shared(0.6), strict=True))  # one draw for all shares


def two_tokens(target: Any, model: Any, asked: Sequence[Text], *how: Any) -> Any:
    time.sleep(0.2)
    return {text.id: [1, 2] for text in asked}


def test_its_cost_has_the_decoding_of_own_answers_and_their_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_policy, "own_answers", two_tokens)
    options = {**PARTS, "steps": 6, "on_policy": 1, "on_policy_every": 4}
    card = train("cllm", options, job(tmp_path, aside=1))
    assert card["cost"]["hours"] * 3600 > 0.4  # two rounds
    assert "flops" not in card["cost"]  # no batch of texts was there to count
    seen = 12 * (5 + 2)  # two visits of 6 texts, of 5 tokens and 2 of its own
    assert (card["cost"]["tokens_seen"], [point["tokens_seen"] for point in card["curve"]]) == (seen, [0, seen])


def test_the_cost_of_a_mix_counts_own_answers_and_given_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_policy, "own_answers", two_tokens)
    plain = {name: value for name, value in PARTS.items() if not name.startswith("on_policy")}
    assert train("cllm", plain, job(tmp_path / "plain"))["cost"]["flops"] > 0
    half = train("cllm", {**PARTS, "steps": 4, "on_policy_every": 4}, job(tmp_path / "half"))
    own = half["own_answers"]["answers"]
    assert 0 < own < 7  # the rest is a visit's other texts: a prompt and two streams each
    given = half["cost"]["tokens_seen"] - 7 * own
    assert given == 5 * (7 - own) + 2 * half["answer_tokens"]


OWN = [Text("a", [1, 2, 3], [4, 5, 6, 7, 8]), Text("b", [9], [10, 11])]


def distilled(weights: Weights, copied: Any, distance: Any = forward_kl) -> Any:
    frozen = Frozen(weights.as_before, copied)
    lesson = DistillationLesson(
        torch.nn.Identity(), weights.model, frozen, lambda own: [OWN[at] for at in own], distance
    )
    return lesson(own=torch.tensor([0, 1]))


@pytest.mark.parametrize("distance", [forward_kl, reverse_kl])
@pytest.mark.parametrize("full", [True, False])
def test_the_loss_is_the_distance_from_the_frozen_target_after_each_own_token(
    full: bool, distance: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_llama(VOCAB).double()  # parts add up in another order: no rounding may hide a difference, or be one
    model = copy.deepcopy(target)
    copied = copy.deepcopy(target) if full else None
    weights = Weights(model, WeightOptions(full=full, lora_rank=2), "tiny", 0)
    before = float(distilled(weights, copied, distance)["loss"].detach())
    assert before == pytest.approx(0, abs=1e-5)  # the student is the target
    with torch.no_grad():
        for parameter in weights.model.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    found = distilled(weights, copied, distance)
    expected = []
    with torch.no_grad():
        for text in OWN:
            ids = torch.tensor([[*text.prompt, *text.answer]])
            rows = slice(len(text.prompt) - 1, -1)
            student, teacher = weights.model(input_ids=ids).logits[0, rows], target(input_ids=ids).logits[0, rows]
            expected += distance(student, teacher).tolist()
    assert len(expected) == 7
    assert float(found["loss"].detach()) == pytest.approx(sum(expected) / 7, rel=1e-4)
    found["loss"].backward()
    gradients = {name: p.grad.clone() for name, p in weights.model.named_parameters() if p.grad is not None}
    assert set(gradients) == {name for name, p in weights.model.named_parameters() if p.requires_grad}
    if copied is not None:
        assert all(parameter.grad is None for parameter in copied.parameters())
    # In parts, which are computed twice, it is the same.
    weights.model.zero_grad()
    monkeypatch.setattr("specbench.training.objectives.student._HELD", 4 * VOCAB)
    again = distilled(weights, copied, distance)
    again["loss"].backward()
    torch.testing.assert_close(again["loss"], found["loss"])
    for name, parameter in weights.model.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-3, atol=1e-7)
