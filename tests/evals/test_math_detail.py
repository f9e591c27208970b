"""What a verdict of mathematics says: an empty answer is none, and its detail is one short printable line."""

from __future__ import annotations

import pytest

from specbench.evals import mathematics
from specbench.evals.grading.workers import Job


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_an_empty_answer_is_wrong_without_a_judge(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mathematics, "ask", lambda job, wall_s: pytest.fail("it was asked"))
    found = mathematics.compare("7", text)
    assert (found.passed, found.reason, found.equal, found.box) == (False, "empty", False, None)


def test_the_box_or_the_text_is_held_against_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Job] = []

    def ask(job: Job, wall_s: float) -> Job:
        asked.append(job)
        return {"passed": "box" in job, "by": "us", "equal": True}

    monkeypatch.setattr(mathematics, "ask", ask)
    found = mathematics.compare("7", "so it is \\boxed{8}")
    assert (found.passed, found.reason, found.detail) == (True, "pass", "us: '8', reference '7'")
    assert (found.equal, found.box) == (True, "8")
    assert mathematics.compare("7", "so it is 8").reason == "fail"
    assert asked == [{"gold": "7", "box": "8"}, {"gold": "7", "text": "the answer is 8", "bare": None}]
