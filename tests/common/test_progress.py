from __future__ import annotations

import pytest

from specbench.common import progress


def test_tenths_are_reported_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    lines: list[str] = []
    report = progress.Tenths(lines.append, lambda done, total: f"{done}/{total}", seconds=3.0)
    for done in range(0, 81, 8):
        report(done, 80)
    assert lines == ["0/80"], "all in a moment"
    for seconds, done in ((3.0, 40), (0.0, 41), (9.0, 43), (0.0, 80)):
        now[0] += seconds
        report(done, 80)
    assert lines[1:] == ["40/80", "80/80"], "43 is of the same tenth"


def test_counting_names_pace_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    lines: list[str] = []
    report = progress.progress_lines(lines.append, "texts")
    report(10, 100)
    now[0] = 30.0
    report(40, 100)
    assert "10/100 texts" in lines[0]
    assert "60/min" in lines[1]
    assert "60 s left" in lines[1]
