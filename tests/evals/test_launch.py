"""What is said while answers are scored."""

from __future__ import annotations

import pytest

from specbench.evals import launch


def test_progress_is_said_at_the_start_and_then_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(launch.time, "monotonic", lambda: now[0])
    said: list[str] = []
    told = launch.Tenths(said.append, seconds=3.0)
    for done in range(0, 81, 8):
        told(done, 80)
    assert said == ["scoring answers, 0 of 80"], "all in a moment"
    now[0] += 3.0
    told(40, 80)
    told(41, 80)
    now[0] += 9.0
    told(43, 80)  # the same tenth
    told(80, 80)
    assert said[1:] == ["scoring answers, 40 of 80", "scoring answers, 80 of 80"]
