"""Times that automatic settings go by: taken once, stored, and a run keeps its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.results.calibration import StoredTimes
from specbench.runner.run_task import slow_times
from specbench.runner.setup.calibration import Calibration

OF = {"model": "m", "machine": "here"}


@pytest.fixture
def take() -> Callable[[], list[tuple[int, float]]]:
    """Takes other times at every call."""
    calls = count(1)
    return lambda: [(1, 0.1 * next(calls)), (4, 0.5)]


def test_times_are_taken_once_and_are_the_same_in_every_later_run(tmp_path: Path, take: Any) -> None:
    first = Calibration(OF, tmp_path)
    assert first.once("steps", take, True) == first.once("steps", take, True) == [(1, 0.1), (4, 0.5)]
    later = Calibration(OF, tmp_path)
    assert later.once("steps", take, True) == [(1, 0.1), (4, 0.5)]
    assert later.used == first.used
    assert later.once("others", lambda: 0.25) == 0.25
    assert Calibration(OF, tmp_path).once("steps", take, True) == [(1, 0.1), (4, 0.5)], (
        "one does not push out the other"
    )


def test_times_of_another_machine_or_model_are_none_of_ours(tmp_path: Path, take: Any) -> None:
    Calibration(OF, tmp_path).once("steps", take, True)
    assert Calibration({**OF, "machine": "there"}, tmp_path).once("steps", take, True) == [(1, 0.2), (4, 0.5)]
    assert Calibration(OF).once("steps", take, True) == [(1, pytest.approx(0.3)), (4, 0.5)], "stored nowhere"


EMPTY = {"of": OF, "times": {"steps": {"times": [], "measured_utc": "2026-01-01T00:00:00+00:00"}}}


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"of": {}, "times": {}}', '{"of": {}, "times": {"steps": 3}}', json.dumps(EMPTY)]
)
def test_a_damaged_store_is_written_anew(tmp_path: Path, take: Any, content: str) -> None:
    Calibration(OF, tmp_path).once("steps", take, True)
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    assert Calibration(OF, tmp_path).once("steps", take, True) == [(1, 0.2), (4, 0.5)]
    assert json.loads(file.read_text())["times"]["steps"]["times"] == [[1, 0.2], [4, 0.5]]


def test_two_processes_at_once_go_by_the_same_times(tmp_path: Path, take: Any) -> None:
    def slow() -> list[tuple[int, float]]:
        Calibration(OF, tmp_path).once("steps", take, True)  # another one is through first
        return [(1, 9.0)]

    assert Calibration(OF, tmp_path).once("steps", slow) == [(1, 0.1), (4, 0.5)]


def test_what_a_run_began_with_comes_before_what_is_stored(tmp_path: Path, take: Any) -> None:
    mine = Calibration(OF, tmp_path)
    mine.once("steps", take, True)
    began = {"steps": StoredTimes(times=[(1, 7.0)], measured_utc="2026-01-01T00:00:00+00:00")}
    assert mine.take(began)
    assert not mine.take(began)
    assert mine.once("steps", take, True) == [(1, 7.0)]
    assert mine.used == began


def test_forgotten_times_are_taken_again_unless_others_are_stored_by_now(tmp_path: Path, take: Any) -> None:
    first, second = Calibration(OF, tmp_path), Calibration(OF, tmp_path)
    assert first.once("steps", take, True) == second.once("steps", take, True) == [(1, 0.1), (4, 0.5)]
    first.once("others", lambda: 0.25)
    first.forget("steps")
    assert first.once("steps", take, True) == [(1, 0.1), (4, 0.5)], "a run keeps its own"
    later = Calibration(OF, tmp_path)
    assert later.once("steps", take, True) == [(1, 0.2), (4, 0.5)]
    assert later.once("others", lambda: 0.5) == 0.25
    second.forget("steps")
    assert Calibration(OF, tmp_path).once("steps", take, True) == [(1, 0.2), (4, 0.5)]


@pytest.mark.parametrize(("context", "concurrency", "seconds", "slow"), [
    (512, 1, 0.13, True), (512, 1, 0.12, False), (4096, 1, 0.13, False), (512, 2, 0.13, False),
])  # fmt: skip
def test_only_times_after_the_usual_context_are_held_to_ars_steps(
    tmp_path: Path, context: int, concurrency: int, seconds: float, slow: bool
) -> None:
    calibration: Any = Calibration(OF, tmp_path)
    what = f"steps of up to 4 rows after {context} tokens"
    calibration.once(what, lambda: [(1, seconds), (4, 0.5)], True)
    session: Any = SimpleNamespace(calibration=calibration, engine=SimpleNamespace(calibration_context=512))
    resolved: Any = SimpleNamespace(plan=SimpleNamespace(concurrency=concurrency))
    plain: Any = [SimpleNamespace(method="ar", decode_s=0.1 * steps, target_forwards=steps) for steps in (0, 3, 4, 5)]
    found = slow_times(resolved, session, plain)
    assert found == ({"slow_times": {"before_s": seconds, "run_s": pytest.approx(0.1)}} if slow else {})
    again = Calibration(OF, tmp_path).once(what, lambda: [(1, 7.0)], True)
    assert again == ([(1, 7.0)] if slow else [(1, seconds), (4, 0.5)])
