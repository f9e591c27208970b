"""Where texts come from: asked, given, or with their trajectories; whose they are; and who judges answers to them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.decoders import loaded
from support.models import answered, tiny_llama
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.common.prompt import Prompt
from specbench.engine.sampler import Sampling
from specbench.evals.prompt_draw import draw_prompts
from specbench.training.data.answers import Asking, ask
from specbench.training.data.collection import Collecting, collect
from specbench.training.data.sources import Found, Wanted, find
from specbench.training.data.training_prompts import scorer

VOCAB = 128
HOW = Asking(max_new_tokens=6, concurrency=2)


@pytest.fixture(scope="module")
def target() -> Any:
    return loaded(tiny_llama(VOCAB))


@pytest.fixture
def answers(target: Any, tmp_path: Path) -> Path:
    """Answers to prompts of two sets."""
    prompts = [Prompt(f"{name}/{number}", "abc"[: number + 1], False) for name in ("one", "two") for number in range(3)]
    ask(target, prompts, HOW, tmp_path / "answers")
    return tmp_path / "answers"


def found(target: Any, out: Path, **wanted: Any) -> Found:
    return find(target, Wanted(**wanted), HOW, out, lambda done, total: None)


def ids(texts: Sequence[Any]) -> list[str]:
    return sorted(text.id for text in texts)


def test_answers_alone_are_taken_as_they_are_and_their_folder_is_left_alone(
    target: Any, answers: Path, tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for path in answers.iterdir()}
    made = found(target, tmp_path / "out", answers=answers)
    assert ids(made.texts) == [f"{name}/{number}" for name in ("one", "two") for number in range(3)]
    assert made.about["prompts"] == ["one", "two"]
    assert made.about["answers"]["max_new_tokens"] == 6
    assert len(found(target, tmp_path / "out", answers=answers, limit=2).texts) == 4
    first = found(target, tmp_path / "out", answers=answers, limit=1, prompt_seed=None)
    assert ids(first.texts) == ["one/0", "two/0"]
    assert first.about["limit"] == "first 1 of each set"
    drawn = [found(target, tmp_path / "out", answers=answers, limit=1, prompt_seed=seed) for seed in range(8)]
    assert len({tuple(ids(each.texts)) for each in drawn}) > 2
    assert drawn[3].about["limit"] == "1 of each set, sampled with seed 3"
    assert {path: path.read_bytes() for path in answers.iterdir()} == before
    assert not (tmp_path / "out").exists()


def test_prompts_are_asked_and_those_of_other_sets_left_out(target: Any, answers: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.jsonl"
    mine.write_text('{"prompt": "ab"}\n{"prompt": "cd"}\n{"prompt": "ef"}\n')
    made = found(target, tmp_path / "out", sets=[str(mine)], limit=2)
    assert ids(made.texts) == ids(draw_prompts([Prompt(f"mine/{at}", "", False) for at in (1, 2, 3)], 2, 0))
    assert made.about["limit"] == "2 of each set, sampled with seed 0"
    assert all(text.id.startswith("mine/") for text in made.texts)
    assert (tmp_path / "out" / "answers.jsonl").exists()
    both = found(target, tmp_path / "other", sets=[str(mine)], answers=answers)
    assert ids(both.texts) == ids(found(target, tmp_path / "again", sets=[str(mine)]).texts)
    assert not (tmp_path / "other").exists()  # missing ones were made where the others are


def test_trajectories_bring_their_texts(target: Any, tmp_path: Path) -> None:
    texts = answered(target, [(4, 9), (5, 7)])
    collect(target, texts, Sampling(), Collecting(block_size=4), tmp_path / "t", rows=64)
    made = found(target, tmp_path / "out", trajectories=tmp_path / "t")
    assert [(text.id, list(text.answer)) for text in made.texts] == [(text.id, list(text.answer)) for text in texts]
    assert made.texts[0].blocks
    assert made.about["trajectories"]["block_size"] == 4
    assert 0 < made.about["collecting_hours"] < 1


def test_texts_of_another_model_or_set_are_refused(target: Any, answers: Path, tmp_path: Path) -> None:
    collect(target, answered(target, [(4, 9)]), Sampling(), Collecting(block_size=4), tmp_path / "t", rows=64)
    other = loaded(tiny_llama(VOCAB, seed=1), name="other")
    with pytest.raises(UsageError, check=wording):
        found(other, tmp_path / "out", answers=answers)
    with pytest.raises(UsageError, check=wording):
        found(other, tmp_path / "out", trajectories=tmp_path / "t")
    with pytest.raises(UsageError, check=wording):
        found(target, tmp_path / "out", trajectories=tmp_path / "t", sets=["gsm8k-train"])


def test_only_who_can_judge_does(task_data: Path) -> None:
    pytest.importorskip("lm_eval")
    score = scorer(["gsm8k-train", "mbpp-train", "mine.jsonl"], chat=True, data_dir=task_data)
    assert score("gsm8k-train/gsm8k/0", "#### 72") is True
    assert score("gsm8k-train/gsm8k/0", "#### 71") is False
    assert score("mine/0", "72") is None
