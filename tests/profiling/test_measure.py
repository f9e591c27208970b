"""Measuring within a time, against steps whose clock is under control; and real steps of a tiny model."""

from __future__ import annotations

import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.models import tiny_llama

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.engine import graphs
from specbench.hardware.roofline import AttentionLayers, Ceilings, ModelShape
from specbench.profiling import measure
from specbench.profiling.ceilings import measure_ceilings
from specbench.profiling.measure import Measurement
from specbench.profiling.step_grid import Cell, ranked

SHAPE = ModelShape(
    matmul=1000, head=100, embedding=0, embedding_width=1, tied=True, small=0,
    attention=(AttentionLayers(layers=1, query_heads=1, kv_heads=1, key_size=5, value_size=5),),
    weight_bytes=2, cache_bytes=2,
)  # fmt: skip
CEILINGS = Ceilings(bytes_per_s=1e5, flops_per_s=1e6)
CELLS = ranked((1, 4, 16, 64), (16, 64, 256), (1, 2))


class Clock:
    """Moves only when a step is taken: a millisecond for each row, and more with each step by ``drift``."""

    def __init__(self, drift: float = 0.0) -> None:
        self.now, self.drift, self.stepped = 0.0, drift, list[Cell]()

    def perf_counter(self) -> float:
        return self.now

    def step(self, cell: Cell) -> float:
        self.stepped.append(cell)
        seconds = 1e-3 * cell.rows * cell.slots * (1 + self.drift * len(self.stepped))
        self.now += seconds
        return seconds


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``measured(clock, seconds)``: what a measurement makes of the cells in so many seconds."""

    def call(clock: Clock, seconds: float) -> Any:
        class Steps:
            def __init__(self, *_: Any, **__: Any) -> None:
                self.engine = SimpleNamespace(report=lambda: {"attention": "none"})

            @contextmanager
            def attached(self) -> Any:
                yield

            seconds = staticmethod(clock.step)

        monkeypatch.setattr(measure, "Steps", Steps)
        monkeypatch.setattr(measure, "time", clock)
        return Measurement(None, SHAPE, CEILINGS, seconds, lambda line: None).run(CELLS)

    return call


def cells_of(points: Any) -> set[Cell]:
    return {Cell(one.rows, one.context, one.slots) for one in points}


def test_with_time_everything_is_measured_equally_often_in_orders_of_their_own(measured: Any) -> None:
    clock = Clock()
    points, left_out = measured(clock, 100.0)
    assert left_out == []
    assert cells_of(points) == set(CELLS)
    assert {one.steps for one in points} == {25}
    assert all(one.seconds == pytest.approx(1e-3 * one.rows * one.slots) for one in points)
    clock = Clock()
    measured(clock, 100.0)
    rounds = clock.stepped[2 * len(CELLS) :]
    first, second = rounds[: len(CELLS)], rounds[len(CELLS) : 2 * len(CELLS)]
    assert set(first) == set(second) == set(CELLS)
    assert first != second


def test_drift_hits_all_alike(measured: Any) -> None:
    points, _ = measured(Clock(drift=1e-3), 1000.0)
    slowed = [one.seconds / (1e-3 * one.rows * one.slots) for one in points]
    assert max(slowed) / min(slowed) < 1.05  # in order, the last of so many would be slower by half
    assert all(one.low_s < one.seconds < one.high_s for one in points)


@pytest.mark.parametrize("seconds", [0.3, 0.7, 1.0, 2.0])
def test_what_there_is_no_time_for_is_named_and_not_tried(measured: Any, seconds: float) -> None:
    clock = Clock()
    points, left_out = measured(clock, seconds)
    assert clock.now <= seconds
    named = {Cell(one.rows, one.context, one.slots) for one in left_out}
    assert named
    assert {one.why for one in left_out} == {"time"}
    assert cells_of(points) | named == set(CELLS)
    assert not cells_of(points) & named
    assert {one.steps for one in points} <= set(range(3, 26))
    assert CELLS[0] in cells_of(points)


def test_the_first_step_is_measured_whatever_the_time_and_slow_ones_end_early(measured: Any) -> None:
    points, left_out = measured(Clock(), 0.0)
    assert cells_of(points) == {CELLS[0]}
    assert [one.steps for one in points] == [3]
    assert len(left_out) == len(CELLS) - 1
    # Each step is slower than the one before by as much as the first took.
    points, _ = measured(Clock(drift=1.0), 4.0)
    assert {one.steps for one in points} == {3}


def test_ctrl_c_keeps_the_whole_rounds(measured: Any) -> None:
    class Interrupted(Clock):
        def step(self, cell: Cell) -> float:
            if len(self.stepped) == 2 * len(CELLS) + 3 * len(CELLS) + 5:  # tried twice; in the fourth round
                raise KeyboardInterrupt
            return super().step(cell)

    points, left_out = measured(Interrupted(), 100.0)
    assert (cells_of(points), left_out) == (set(CELLS), [])
    assert {one.steps for one in points} == {3}


def test_real_steps_of_one_slot_and_of_several() -> None:
    model = tiny_llama(97)
    cells = [Cell(1, 16), Cell(8, 16), Cell(8, 100), Cell(4, 16, 3)]
    measurement = Measurement(model, SHAPE, CEILINGS, time.perf_counter() + 2.0, lambda line: None, backend="auto")
    points, left_out = measurement.run(cells)
    assert left_out == []
    assert cells_of(points) == set(cells)
    assert all(0 < one.low_s <= one.seconds <= one.high_s < 1 for one in points)
    assert measurement.report["attention"] == "reference"
    assert model.config._attn_implementation != "specbench"  # given back


def test_captured_steps_are_measured_and_none_is_captured_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)
    cells = [Cell(1, 16), Cell(5, 16), Cell(5, 100), Cell(2, 16, 2)]
    deadline = time.perf_counter() + 60.0
    measurement = Measurement(tiny_llama(97), SHAPE, CEILINGS, deadline, lambda line: None, graphs=True)
    points, left_out = measurement.run(cells)
    assert left_out == []
    assert cells_of(points) == set(cells)
    assert measurement.report["graphs"] > 0
    assert measurement.report["late_captures"] == 0


def test_ceilings_are_what_a_machine_can_have() -> None:
    found = measure_ceilings(torch.device("cpu"), torch.float32, "onednn", seconds=0.0)
    assert found.repeats == 3
    assert found.ceilings.bytes_per_s == max(found.copy_bytes_per_s, found.read_bytes_per_s)
    # Any machine that runs this moves a gigabyte a second, and none a petabyte.
    assert 1e9 < found.read_bytes_per_s < 1e15
    assert 1e9 < found.copy_bytes_per_s < 1e15
    assert 1e9 < found.flops_per_s < 1e15
