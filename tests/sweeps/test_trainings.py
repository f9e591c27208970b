"""A sweep over trainings: what it trains, leaves out, finds done and keeps, with a trainer that only counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from specbench.common.errors import UsageError
from specbench.sweeps import trainings
from specbench.sweeps.plan import TrainedSweepPlan
from specbench.sweeps.trained import UNTRAINED, read_entries
from specbench.sweeps.trainings import Due, sweep_trainings


class Cell(NamedTuple):
    label: str
    values: Mapping[str, Any]


class Will(NamedTuple):
    tokens: int
    flops: float | None
    hours: float


class Made(NamedTuple):
    model: str
    settings: tuple[str, ...]
    card: Mapping[str, Any]


@dataclass
class Trainer:
    """An hour for each text."""

    done: dict[str, Made] = field(default_factory=dict)
    trained: list[str] = field(default_factory=list)
    option: str | None = None
    method: str = "msn"

    def cell(self, values: Mapping[str, str]) -> Cell:
        return Cell(" ".join(f"{name}={value}" for name, value in values.items()), dict(values))

    def prepare(self, cells: Sequence[Cell]) -> None:
        assert not self.trained

    def predict(self, cell: Cell) -> Will:
        texts = int(cell.values["texts"])
        return Will(100 * texts, 1e9 * texts, float(texts))

    def made(self, cell: Cell) -> Made | None:
        return self.done.get(cell.label)

    def train(self, cell: Cell) -> Made:
        self.trained.append(cell.label)
        cost = {"tokens_seen": 7, "hours": float(cell.values["texts"])}
        self.done[cell.label] = Made(f"weights of {cell.label}", (), {"cost": cost})
        return self.done[cell.label]


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, tuple[str, ...]]]:
    """Models that are swept, with the settings that load what was trained for them."""
    found: list[tuple[str, tuple[str, ...]]] = []

    def run_sweep(plan: Any) -> Path:
        assert plan.out.parent.parent == tmp_path
        found.append((plan.model, tuple(plan.settings)))
        return Path(plan.out, f"sweep-{len(found)}")

    monkeypatch.setattr(trainings, "run_sweep", run_sweep)
    return found


def asked(out: Path, *grid: str, **more: Any) -> TrainedSweepPlan:
    own = {"model": "config:tiny", "train": "msn", "train_grid": grid, "grid": ("draft_length=2",), "out": out}
    return TrainedSweepPlan.model_validate({**own, **more})


def go(plan: TrainedSweepPlan, trainer: Trainer) -> tuple[Path, list[Due], list[str]]:
    due: list[Due] = []
    said: list[str] = []

    def told(each: Sequence[Due]) -> None:
        assert not trainer.trained, "told before the first is trained"
        due.extend(each)

    return sweep_trainings(plan, trainer, told, said.append), due, said


def test_every_training_is_swept_and_the_untrained_model_first(tmp_path: Path, swept: list[Any]) -> None:
    trainer = Trainer()
    folder, due, _ = go(asked(tmp_path, "texts=2,3"), trainer)
    assert [(each.label, each.hours) for each in due] == [("texts=2", 2.0), ("texts=3", 3.0)]
    assert trainer.trained == ["texts=2", "texts=3"]
    assert [model for model, _ in swept] == ["config:tiny", "weights of texts=2", "weights of texts=3"]
    entries = read_entries(folder)
    assert [(each.label, each.sweep) for each in entries] == [
        (UNTRAINED, "untrained/sweep-1"), ("texts=2", "texts=2/sweep-2"), ("texts=3", "texts=3/sweep-3"),
    ]  # fmt: skip
    assert entries[1].cost == {"tokens_seen": 7, "hours": 2.0}


def test_weights_that_are_no_model_go_into_the_methods_options(tmp_path: Path, swept: list[Any]) -> None:
    done = {"texts=2": Made("config:tiny", ("jetspec.head=h",), {"cost": {"hours": 1}})}
    trainer = Trainer(done=done, option="head")
    go(asked(tmp_path, "texts=2"), trainer)
    assert not trainer.trained
    assert swept == [("config:tiny", ("jetspec.head=h",))], "a head that nobody trained does not exist"


def test_what_would_take_too_long_is_left_out_and_a_shorter_one_is_not(tmp_path: Path, swept: list[Any]) -> None:
    trainer = Trainer()
    folder, _, said = go(asked(tmp_path, "texts=2,9,3", max_hours=5.0), trainer)
    assert trainer.trained == ["texts=2", "texts=3"]
    assert [line for line in said if "left out" in line] == [
        "texts=9 is left out: it would take 9.00 h, and 2.00 of 5 h are spent; raise --max-hours to train it"
    ]
    assert [(each.label, each.left_out) for each in read_entries(folder)] == [
        (UNTRAINED, False), ("texts=2", False), ("texts=9", True), ("texts=3", False),
    ]  # fmt: skip
    # What is done counts, and is not trained again.
    trainer.trained.clear()
    _, due, _ = go(asked(tmp_path, "texts=2,9,3", max_hours=14.0), trainer)
    assert [each.predicted is None for each in due] == [True, False, True]
    assert trainer.trained == ["texts=9"]


def test_trainings_of_another_grid_stay_in_the_folder(tmp_path: Path, swept: list[Any]) -> None:
    trainer = Trainer()
    first, _, _ = go(asked(tmp_path, "texts=2"), trainer)
    trainer.trained.clear()
    second, _, _ = go(asked(tmp_path, "texts=3"), trainer)
    assert first == second
    assert [each.label for each in read_entries(first)] == ["texts=2", UNTRAINED, "texts=3"]
    other, _, _ = go(asked(tmp_path, "texts=3", train_set=("lr=0.1",)), Trainer())
    assert other != first


def test_mistakes_are_found_before_anything_is_trained(tmp_path: Path, swept: list[Any]) -> None:
    trainer = Trainer()
    with pytest.raises(UsageError, match="nothing to train by; write --train-grid"):
        go(asked(tmp_path), trainer)
    with pytest.raises(UsageError, match="nothing to sweep; write --grid"):
        go(asked(tmp_path, "texts=2", grid=()), trainer)
    with pytest.raises(UsageError, match="unknown option of msn to sweep"):
        go(asked(tmp_path, "texts=2", grid=("draft_lenght=2",)), trainer)
    assert (trainer.trained, swept) == ([], [])
