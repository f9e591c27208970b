"""A sweep over trainings: what it trains, leaves out, finds done and keeps, with a trainer that only counts."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from rich.console import Console
from support.runs import cells as made_cells
from support.wording import wording

from specbench.common.errors import EnvironmentRefused, NothingLearnt
from specbench.report.charts.training_cost import save_training_cost, training_cost, training_pareto
from specbench.report.render.terminal import render_terminal
from specbench.report.tables.trainings import trainings_report
from specbench.sweeps import trainings
from specbench.sweeps.sweep_plan import TrainedSweepPlan
from specbench.sweeps.trained import COST, UNTRAINED, Entry, _rows, read_entries, read_trainings
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
        monkeypatch.chdir("/")  # as a plug-in may
        return Path(plan.out, f"sweep-{len(found)}")

    monkeypatch.setattr(trainings, "run_sweep", run_sweep)
    return found


def asked(out: Path, *grid: str, **more: Any) -> TrainedSweepPlan:
    own = {"model": "config:tiny", "train": "msn", "train_grid": grid, "grid": ("draft_length=2",), "out": out}
    return TrainedSweepPlan.model_validate({**own, **more})


def go(plan: TrainedSweepPlan, trainer: Trainer) -> tuple[Path, list[Due], list[str]]:
    due: list[Due] = []
    result: list[str] = []

    def reported(each: Sequence[Due]) -> None:
        assert not trainer.trained, "reported before the first is trained"
        due.extend(each)

    return sweep_trainings(plan, reported, result.append, cast(Any, trainer)), due, result


@pytest.mark.parametrize("relative", [False, True])
def test_every_training_is_swept_and_the_untrained_model_first(
    tmp_path: Path, swept: list[Any], monkeypatch: pytest.MonkeyPatch, relative: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = Trainer()
    folder, due, _ = go(asked(Path() if relative else tmp_path, "texts=2,3"), trainer)
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
    assert swept == [("config:tiny", ("jetspec.head=h",))], "a head that no one trained does not exist"


def test_what_would_take_too_long_is_left_out_and_a_shorter_one_is_not(tmp_path: Path, swept: list[Any]) -> None:
    trainer = Trainer()
    folder, _, result = go(asked(tmp_path, "texts=2,9,3", max_hours=5.0), trainer)
    assert trainer.trained == ["texts=2", "texts=3"]
    assert [line for line in result if "left out" in line] == [
        "texts=9 is left out: it would take 9.00 h, and 2.00 of 5 h are spent; raise --max-hours to train it"
    ]
    assert [(each.label, each.left_out) for each in read_entries(folder)] == [
        (UNTRAINED, False), ("texts=2", False), ("texts=9", True), ("texts=3", False),
    ]  # fmt: skip
    trainer.trained.clear()
    go(asked(tmp_path, "texts=2,9,3", max_hours=13.9), trainer)
    assert trainer.trained == []
    _, due, _ = go(asked(tmp_path, "texts=2,9,3", max_hours=14.0), trainer)
    assert [each.predicted is None for each in due] == [True, False, True]
    assert trainer.trained == ["texts=9"]


def test_a_training_that_leaves_no_weights_is_said_and_the_others_go_on(tmp_path: Path, swept: list[Any]) -> None:
    class Ended(Trainer):
        def train(self, cell: Cell) -> Made:
            if cell.label == "texts=2":
                raise NothingLearnt("after 5 steps all is a loop")
            return super().train(cell)

    trainer = Ended()
    folder, _, result = go(asked(tmp_path, "texts=2,3"), trainer)
    assert wording("\n".join(result))
    assert trainer.trained == ["texts=3"]
    assert [model for model, _ in swept] == ["config:tiny", "weights of texts=3"]
    assert [(each.label, each.ended) for each in read_entries(folder)] == [
        (UNTRAINED, ""), ("texts=2", "after 5 steps all is a loop"), ("texts=3", ""),
    ]  # fmt: skip


def test_trainings_of_another_grid_stay_in_the_folder(tmp_path: Path, swept: list[Any]) -> None:
    trainer = Trainer()
    first, _, _ = go(asked(tmp_path, "texts=2"), trainer)
    trainer.trained.clear()
    second, _, _ = go(asked(tmp_path, "texts=3"), trainer)
    assert first == second
    assert [each.label for each in read_entries(first)] == ["texts=2", UNTRAINED, "texts=3"]
    other, _, _ = go(asked(tmp_path, "texts=3", train_set=("lr=0.1",)), Trainer())
    assert other != first


def test_the_folder_says_what_is_done_whenever_a_call_ends(
    tmp_path: Path, swept: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill in a training, and in a sweep of a second call: nothing that was swept is lost sight of."""

    class Kill(Exception):
        """The process ends here."""

    class Killed(Trainer):
        def train(self, cell: Cell) -> Made:
            if cell.values["texts"] == "3":
                raise Kill
            return super().train(cell)

    def shown(path: Path) -> str:
        console = Console(width=80, file=io.StringIO())
        console.print(render_terminal(trainings_report(read_trainings(path))))
        return console.file.getvalue()  # type: ignore[attr-defined]

    first = Killed()
    with pytest.raises(Kill):
        go(asked(tmp_path, "texts=2,3"), first)
    (folder,) = tmp_path.iterdir()
    assert shown(folder).splitlines() == [
        "No training was swept yet.",
        *(f"Not swept yet: {each}; repeat the sweep's command." for each in (UNTRAINED, "texts=2")),
        "Not trained yet: texts=3; repeat the sweep's command.",
    ]
    assert save_training_cost(read_trainings(folder).cells, tmp_path) is None
    trainer = Trainer(done=dict(first.done))
    go(asked(tmp_path, "texts=2,3"), trainer)
    assert trainer.trained == ["texts=3"]
    whole = {each.label: each.sweep for each in read_entries(folder)}
    assert None not in whole.values()

    def kill(plan: Any) -> Path:
        raise Kill

    monkeypatch.setattr(trainings, "run_sweep", kill)
    with pytest.raises(Kill):
        go(asked(tmp_path, "texts=2,3", grid=("draft_length=2,3",)), Trainer(done=trainer.done))
    assert {each.label: each.sweep for each in read_entries(folder)} == whole


def test_what_the_untrained_model_cost_is_nothing_and_what_is_not_known_is_none() -> None:
    cells = pd.DataFrame({"method": ["ar", "msn"]}, index=[3, 4])
    rows = _rows(Entry(label=UNTRAINED, values={}), cells)
    assert [list(rows[name]) for name in COST] == [[0, 0]] * len(COST)
    rows = _rows(Entry(label="texts=2", values={"texts": 2}, cost={"tokens_seen": 7, "hours": 0.5}), cells)
    assert (list(rows["train.texts"]), list(rows["tokens_seen"]), list(rows["hours"])) == ([2, 2], [7, 7], [0.5, 0.5])
    assert rows[["flops", "energy_j"]].isna().all(axis=None)
    assert list(rows["method"]) == ["ar", "msn"]


def test_the_picture_marks_what_is_cheapest_for_its_speedup() -> None:
    rows = [("untrained", 0, 1.0), ("a", 10, 1.5), ("b", 20, 1.4), ("c", 40, 2.0)]
    cells = pd.DataFrame([
        {"training": name, "set": "tuning", "method": "msn", "label": "msn", "concurrency": 1, "tokens_seen": cost,
         "flops": math.nan if name == "b" else 1.0, "speedup": speed, "speedup_low": speed - 0.1,
         "speedup_high": speed + 0.1}
        for name, cost, speed in rows
    ])  # fmt: skip
    (panel,) = training_cost(cells).axes
    (ahead,) = (line for line in panel.lines if line.get_label() == "cheapest for its speedup")
    steps = np.asarray(ahead.get_xydata()).tolist()
    assert steps == [[0, 1.0], [10, 1.0], [10, 1.5], [40, 1.5], [40, 2.0]]
    assert panel.get_xlabel() == "tokens of the training"  # operations of one are not known
    points: list[Any] = [each for each in panel.collections if isinstance(each, PathCollection)]
    colours = {tuple(each.get_facecolor()[0]) for each in points if len(each.get_offsets())}
    assert len(colours) == len(rows)  # one for each training
    legend: Any = panel.get_legend()
    assert {name for name, _, _ in rows} <= {text.get_text() for text in legend.get_texts()}


def test_a_mark_grows_with_the_tokens_of_its_training() -> None:
    rows = [("untrained", 0, 60.0, 0.6), ("a", 100, 80.0, 0.58), ("b", 400, 90.0, 0.55)]
    plain = {"method": "ar", "set": "tuning", "training": "untrained", "tokens_seen": 0, "decode_tok_s": 40.0}
    table = [{**plain, "accuracy": 0.6}]
    for name, tokens, speed, right in rows:
        row = {"training": name, "tokens_seen": tokens, "decode_tok_s": speed, "accuracy": right}
        table.append({**row, "method": "msn", "set": "tuning", "label": "msn", "speedup": speed / 40})
    (panel,) = training_pareto(made_cells(table)).axes
    marks = {}
    for mark in panel.collections:
        if isinstance(mark, PathCollection):
            ((x, y),), (area,) = np.asarray(mark.get_offsets()).tolist(), mark.get_sizes()
            marks[x] = (y, float(area))
    assert {x: y for x, (y, _) in marks.items()} == {40.0: 0.6, 60.0: 0.6, 80.0: 0.58, 90.0: 0.55}
    least = marks[60.0][1]
    assert (marks[90.0][1] - least) == pytest.approx(2 * (marks[80.0][1] - least)), "the root of four times the tokens"


def test_two_labels_never_share_a_folder(tmp_path: Path, swept: list[Any]) -> None:
    class Named(Trainer):
        def predict(self, cell: Cell) -> Will:
            return Will(1, None, 0.0)

        def train(self, cell: Cell) -> Made:
            return Made(cell.label, (), {})

    folder, _, _ = go(asked(tmp_path, "start=org/a,org-a,org:a"), Named())
    places = [str(each.sweep).partition("/")[0] for each in read_entries(folder)]
    assert places[2] == "start=org-a"
    assert len(set(places)) == len(places) == 4


def test_what_decides_a_sweep_decides_its_folder(tmp_path: Path, swept: list[Any]) -> None:
    def folder(**more: Any) -> Path:
        return go(asked(tmp_path, "texts=2", **more), Trainer())[0]

    same: list[dict[str, Any]] = [
        {},
        {"grid": ("draft_length=3",)},
        {"quiet": True},
        {"max_hours": 3.0},
        {"search": "halving"},
    ]
    other: list[dict[str, Any]] = [
        {"dtype": "bfloat16"},
        {"max_new_tokens": 9},
        {"train_tokens": 9},
        {"train_held_out": 9},
        {"seed": 9},
    ]
    assert len({folder(**more) for more in same}) == 1
    assert len({folder(**more) for more in (same[0], *other)}) == 1 + len(other)


def test_a_second_call_at_the_same_time_is_refused(tmp_path: Path, swept: list[Any]) -> None:
    result: list[str] = []

    class Slow(Trainer):
        def train(self, cell: Cell) -> Made:
            with pytest.raises(EnvironmentRefused) as raised:
                go(asked(tmp_path, "texts=2"), Trainer())
            result.append(str(raised.value))
            return super().train(cell)

    folder, _, _ = go(asked(tmp_path, "texts=2"), Slow())
    assert result == [f"{folder} is in use by another specbench process; wait for it, or choose another --out"]
