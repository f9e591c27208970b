"""Recipes of draft heads and draft models: interruptions, held-out texts, the target, and other options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support import decoders, head_training, models
from support.head_training import ANSWER, answers
from support.models import tiny_llama
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.training.recipe import Job, Text

WORDS = models.byte_tokenizer()
RECIPES: dict[str, dict[str, Any]] = {
    "dspark": {"layers": 1, "block_size": 4, "anchors": 40, "markov_rank": 8},
    "eagle3": {"unroll": 4, "clip": 5.0},
    "jetspec": {"layers": 1, "block_size": 5, "anchors": 40},
    "medusa": {"heads": 3},
    "sps": {"layers": 1, "draft_tokens": 3},
}
KEEPING = ("eagle3", "jetspec", "medusa")  # may keep the target's features

every_recipe = pytest.mark.parametrize("recipe", RECIPES)


def target() -> Any:
    return decoders.loaded(tiny_llama(len(WORDS), num_hidden_layers=7), "target", WORDS)


def train(recipe: str, job: Job, **more: Any) -> Mapping[str, Any]:
    return head_training.train(recipe, job, **{**RECIPES[recipe], **more})


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Text]:
    """The tiny target's own greedy answers."""
    return answers(target(), tmp_path_factory.mktemp("answers"), first=32)


def job(texts: Sequence[Text], out: Path, say: Callable[[str], None] = lambda line: None, aside: int = 0) -> Job:
    return Job(target(), texts[aside:], texts[:aside], out, 0, say)


def same(one: Path, other: Path) -> bool:
    """Whether two trainings left the same weights."""
    mine, theirs = (load_file(next(folder.glob("*/model.safetensors"))) for folder in (one, other))
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@every_recipe
def test_an_interrupted_training_ends_as_an_uninterrupted_one(recipe: str, texts: list[Text], tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    def cut(line: str) -> None:
        if line.startswith("step 6/"):
            raise Cut

    train(recipe, job(texts, tmp_path / "whole"))
    with pytest.raises(Cut):
        train(recipe, job(texts, tmp_path / "parts", cut))
    result: list[str] = []
    train(recipe, job(texts, tmp_path / "parts", result.append))
    assert result[1].startswith("step 5/8")
    assert same(tmp_path / "whole", tmp_path / "parts")
    again: list[str] = []
    train(recipe, job(texts, tmp_path / "parts", again.append))
    assert not any(line.startswith("step ") for line in again), "everything was done"
    assert same(tmp_path / "whole", tmp_path / "parts")


@every_recipe
def test_held_out_texts_and_the_target_stay_out(recipe: str, texts: list[Text], tmp_path: Path) -> None:
    asked = target()
    before = {name: value.clone() for name, value in asked.model.state_dict().items()}
    train(recipe, Job(asked, texts[2:], texts[:2], tmp_path / "a", 0, lambda line: None), steps=2)
    assert all(torch.equal(value, before[name]) for name, value in asked.model.state_dict().items())
    assert not any(module._forward_hooks for module in asked.model.modules())
    swapped = [Text(text.id, text.prompt, [5] * ANSWER) for text in texts[:2]] + texts[2:]
    card = train(recipe, job(swapped, tmp_path / "b", aside=2), steps=2)
    assert same(tmp_path / "a", tmp_path / "b")
    assert card["held_out_texts"] == 2
    without = train(recipe, job(texts, tmp_path / "c"), steps=2)
    assert {name for name in without if name.startswith("held_out")} <= {"held_out_texts"}
    assert not {"before", "after"} & without.keys()


@every_recipe
def test_other_options_or_texts_are_not_mixed_in(recipe: str, texts: list[Text], tmp_path: Path) -> None:
    train(recipe, job(texts, tmp_path), steps=1)
    for more, some in (({"lr": 0.5}, texts), ({}, texts[1:])):
        with pytest.raises(UsageError, check=wording):
            train(recipe, job(some, tmp_path), steps=1, **more)
    train(recipe, job(texts, tmp_path), steps=1, log_every=7)  # changes nothing that is learnt
    with pytest.raises(UsageError, check=wording):
        train(recipe, job([Text("a", [1, 2], [3])], tmp_path / "short"))


@pytest.mark.parametrize("recipe", KEEPING)
def test_kept_features_are_asked_for_once(
    recipe: str, texts: list[Text], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench.training.objectives.teacher import Teacher

    asked: list[int] = []
    real = Teacher.__call__

    def counted(self: Teacher, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(len(ids))
        return real(self, ids)

    monkeypatch.setattr(Teacher, "__call__", counted)
    cards = {}
    for keep, times in ((True, 1), (False, 3)):
        asked.clear()
        cards[keep] = train(recipe, job(texts[:4], tmp_path / str(keep)), steps=6, batch=2, keep_features=keep)
        assert sum(asked) == 4 * times
    assert cards[True]["loss"] == pytest.approx(cards[False]["loss"], rel=1e-3)
