"""Cells of trainings: which training a cell is, what is predicted of it, and what of a finished one is believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.training import training_grid as module
from specbench.training.training_grid import Cells
from specbench.training.training_plan import TrainPlan

CARD = {"texts": 96, "steps": 24, "cost": {"tokens_seen": 9600, "flops": 960.0, "hours": 0.96}}


def cells(out: Path, method: str = "msn", **more: Any) -> Cells:
    own = {"model": "config:tiny", "method": method, "prompts": "gsm8k-train", "settings": ("batch=4",), "out": out}
    return Cells(TrainPlan.model_validate({**own, **more}), lambda line: None)


def finish(found: Cells, values: dict[str, str], **more: Any) -> Any:
    """A cell whose training has left a card and weights."""
    cell = found.cell(values)
    weights = cell.plan.into / "adapter"
    weights.mkdir(parents=True)
    (cell.plan.into / "card.json").write_text(json.dumps({**CARD, "weights": str(weights), **more}))
    return cell


def test_more_texts_than_a_finished_training_had_take_longer(tmp_path: Path) -> None:
    found = cells(tmp_path)
    done = finish(found, {"texts": "96"})
    assert found.made(done) is not None
    assert found.predict(found.cell({"texts": "192"})).hours == pytest.approx(1.92)
    assert found.predict(found.cell({"texts": "48"})) == (4800, pytest.approx(480), pytest.approx(0.48))


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[TrainPlan]:
    """Plans of trainings of two steps, which are not run."""
    found: list[TrainPlan] = []

    def run_training(plan: TrainPlan, say: Any) -> dict[str, Any]:
        found.append(plan)
        return {**CARD, "texts": 48, "steps": 2, "cost": {"tokens_seen": 800, "hours": 0.08}}

    monkeypatch.setattr(module, "run_training", run_training)
    return found


def test_texts_that_will_be_held_out_are_not_counted(tmp_path: Path, probed: list[TrainPlan]) -> None:
    found = cells(tmp_path, held_out=16)
    assert found.predict(found.cell({"lr": "0.1"})).hours == pytest.approx(0.32)  # 32 texts at 0.01 h
    assert (probed[0].held_out, probed[0].settings) == (0, ("batch=4", "lr=0.1", "steps=2"))


def test_what_does_not_change_a_training_does_not_change_its_folder(tmp_path: Path) -> None:
    def folder(**more: Any) -> Path:
        return cells(tmp_path, **more).cell({"texts": "2"}).plan.into

    assert folder() == folder(quiet=True) == folder(concurrency=2)
    assert len({folder(), folder(held_out=2), folder(seed=2), folder(revision="x")}) == 4


@pytest.mark.parametrize(
    "wrong", [{"cost": "much"}, {"steps": "24"}, {"texts": None}, {"cost": {"tokens_seen": 1, "hours": -1}}]
)
def test_a_damaged_card_is_one_sentence(wrong: dict[str, Any], tmp_path: Path) -> None:
    found = cells(tmp_path)
    cell = finish(found, {"texts": "96"}, **wrong)
    with pytest.raises(UsageError, match=r"card\.json"):
        found.made(cell)


@pytest.mark.parametrize(
    ("method", "option"),
    [("jetspec", "head"), ("eagle3", "head"), ("draft", "draft"), ("jf", None), ("cllm", None), ("msn", None)],
)
def test_what_is_trained_goes_to_the_methods_option(tmp_path: Path, method: str, option: str | None) -> None:
    own = {"method": method, "model": "config:tiny", "prompts": "gsm8k-train", "out": tmp_path}
    assert Cells(TrainPlan.model_validate(own), lambda line: None).option == option


def test_given_answers_are_learnt_by_every_training(tmp_path: Path) -> None:
    found = cells(tmp_path, prompts="mine.jsonl", given=True)
    plan = found.cell({"lr": "0.1"}).plan
    assert plan.given
    assert plan.answers is None  # none are generated
    assert plan.sets == ["mine.jsonl"]
    for method, prompts in (("jf", "mine.jsonl"), ("msn", "gsm8k-train")):
        with pytest.raises(UsageError, check=wording):
            cells(tmp_path, method, prompts=prompts, given=True)
