"""``labels=target``: rows of a text learn the target's distributions before training, instead of its tokens."""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from support.decoders import loaded
from support.models import tiny_llama
from support.runs import made_up_trajectories

from specbench.methods.msn.noise import noised
from specbench.training.objectives import losses
from specbench.training.objectives.distances import forward_kl, reverse_kl
from specbench.training.objectives.frozen import Frozen
from specbench.training.objectives.student import Student
from specbench.training.recipe import Job, Text

VOCAB = 50
BOTH = [made_up_trajectories("a", answer=11, vocab=VOCAB), made_up_trajectories("b", answer=6, vocab=VOCAB)]


def two_models() -> tuple[Any, Any]:
    """A student and a target that differ."""
    student, target = tiny_llama(VOCAB), tiny_llama(VOCAB)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return student, target


def of(method: str) -> Any:
    return importlib.import_module(f"specbench.methods.{method}.learning")


def answer_rows(model: Any, text: Any, ids: torch.Tensor) -> torch.Tensor:
    """Scores that foresee the answer's tokens."""
    found: torch.Tensor = model(ids).logits[0, len(text.prompt) - 1 : -1]
    return found


@pytest.mark.parametrize("at_once", [2, 1 << 20])
@pytest.mark.parametrize(("distance", "far"), [("forward", forward_kl), ("reverse", reverse_kl)])
@pytest.mark.parametrize("method", ["jf", "cllm"])
@torch.no_grad()
def test_clean_rows_are_as_far_from_the_target_after_the_same_text(
    method: str, distance: str, far: Any, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Student, "rows_at_once", at_once)  # scores of all rows together, and a row at a time
    student, target = two_models()
    options = of(method).Options(labels="target", distance=distance, ar_weight=3)
    lesson = of(method).Lesson(student, options, Frozen(lambda: nullcontext(target)))
    batch = of(method).Collator(options)(BOTH)
    found = lesson(**batch)
    expected = torch.cat(
        [
            far(answer_rows(student, text, ids), answer_rows(target, text, ids))
            for text in BOTH
            for ids in [torch.tensor([[*text.prompt, *text.answer]])]
        ]
    )
    assert float(found["autoregressive"]) == pytest.approx(float(expected.mean()), rel=1e-4)
    assert float(found["loss"]) == pytest.approx(float(found["consistency"] + 3 * expected.mean()), rel=1e-4)
    plain = of(method).Lesson(student, of(method).Options(distance=distance))(**batch)
    assert float(found["consistency"]) == pytest.approx(float(plain["consistency"]), rel=1e-5)


@pytest.mark.parametrize("place", ["random", "lowest"])
@torch.no_grad()
def test_rows_after_noise_are_as_far_from_the_target_after_the_clean_text(place: str) -> None:
    student, target = two_models()
    options = of("msn").Options(labels="target", noise_length=3, place=place)
    batch = of("msn").Collator(options)([Text(text.id, text.prompt, text.answer) for text in BOTH])
    starts: list[torch.Tensor] = []
    own = noised

    def seen(ids: Any, sources: Any, begins: Any, lengths: Any, in_place: bool) -> Any:
        starts.append(begins)
        return own(ids, sources, begins, lengths, in_place)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of("msn"), "noised", seen)
        found = of("msn").Lesson(student, options, Frozen(lambda: nullcontext(target)))(**batch)
    noisy = own(batch["ids"], batch["sources"], starts[0], batch["lengths"], False)
    assert bool((noisy != batch["ids"]).any())
    expected = torch.cat(
        [
            forward_kl(
                answer_rows(student, text, noisy[row : row + 1, : len(text.prompt) + len(text.answer)]),
                answer_rows(target, text, torch.tensor([[*text.prompt, *text.answer]])),
            )
            for row, text in enumerate(BOTH)
        ]
    )
    assert float(found["loss"]) == pytest.approx(float(expected.mean()), rel=1e-4)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("method", ["jf", "cllm", "msn"])
def test_what_is_learnt_from_stays_as_it_was_while_the_student_learns(
    method: str, full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, taught, divergences = tiny_llama(VOCAB), [], []
    own, evaluated = Frozen.labels, losses.evaluate_losses

    def labels(self: Any, states: Any) -> Any:
        found = own(self, states)
        with torch.no_grad():
            expected = target.get_output_embeddings()(states(Student(target)).flatten(0, 1))
        scores = found(torch.arange(len(expected)))
        taught.append(torch.equal(scores, expected) and not scores.requires_grad)
        return found

    def evaluate_losses(*args: Any, **options: Any) -> Any:
        found = evaluated(*args, **options)
        divergences.append(float(found.surprise.detach().mean()))
        return found

    monkeypatch.setattr(Frozen, "labels", labels)
    where = "specbench.methods.msn.learning" if method == "msn" else "specbench.training.objectives.consistency"
    monkeypatch.setattr(importlib.import_module(where), "evaluate_losses", evaluate_losses)
    recipe = importlib.import_module(f"specbench.methods.{method}.train")
    known = [made_up_trajectories(f"made/{number}", answer=9 + number, vocab=VOCAB) for number in range(6)]
    noise = {"noise_length": 0} if method == "msn" else {}
    options = recipe.Options(
        steps=4, batch=2, lr=0.05, warmup=0, lora_rank=4, bf16=False, full=full, labels="target", **noise
    )
    recipe.train(options, Job(loaded(tiny_llama(VOCAB)), known, [], tmp_path, 0, lambda line: None, model="tiny"))
    assert taught == [True] * 4
    assert divergences[0] == pytest.approx(0, abs=1e-5)  # before the first step the student is the target
    assert divergences[-1] > 1e-4  # and then is not
