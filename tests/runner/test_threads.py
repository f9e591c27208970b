"""How many threads a step gets where no one says it, and in a run that is resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import specbench
from specbench.common.errors import UsageError
from specbench.hardware import environment
from specbench.runner import loading, run_task
from specbench.runner.setup import threads


@pytest.fixture(autouse=True)
def _four_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "usable_cores", lambda: 4)
    monkeypatch.setattr(threads, "cores_in_reach", lambda: 4)
    yield
    threads.set_threads(None)
    torch.set_num_threads(before)


@pytest.mark.parametrize(("cores", "left"), [(0.0, 4), (0.4, 4), (0.6, 3), (1.1, 3), (2.9, 1), (3.9, 1), (9.0, 1)])
def test_no_thread_has_a_core_that_others_have(cores: float, left: int) -> None:
    result: list[str] = []
    threads.leave_cores(cores, result.append)
    assert torch.get_num_threads() == left
    assert threads.fewer_than_usual() == bool(result) == (left < 4)


@pytest.mark.parametrize(
    ("reach", "taken_cores", "left", "why"),
    [(64, 40.0, 3, "this process gets 3 of 64 cores"), (4, 3.0, 1, "other processes use 3.0 of 4 cores")],
)
def test_a_quota_is_no_more_than_its_worth_and_no_others_fault(
    reach: int, taken_cores: float, left: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "usable_cores", lambda: 3)
    monkeypatch.setattr(threads, "cores_in_reach", lambda: reach)
    result: list[str] = []
    threads.leave_cores(taken_cores, result.append)
    assert torch.get_num_threads() == left
    assert result == [f"{why}: {left} thread{'' if left == 1 else 's'} instead of 4; --threads N overrides"]
    assert threads.fewer_than_usual() == (left == 1)


def test_who_says_how_many_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    threads.leave_cores(3.0, pytest.fail)
    assert torch.get_num_threads() == 4


def test_the_next_plan_gets_the_usual_ones_again() -> None:
    threads.leave_cores(2.0, lambda line: None)
    assert torch.get_num_threads() == 2
    threads.set_threads(None)
    assert (torch.get_num_threads(), threads.fewer_than_usual()) == (4, False)
    threads.set_threads(3)
    threads.set_threads(None)
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize(
    ("run", "now"),
    [
        ({"environment": {"cpu": {"torch_threads": 2}}}, 2),
        ({"environment": {"cpu": {"torch_threads": None}}}, 4),
        ({"environment": None}, 4),
        ({}, 4),
    ],
)
def test_a_resumed_run_goes_on_with_its_own(run: dict[str, Any], now: int) -> None:
    threads.as_before(run)
    assert torch.get_num_threads() == now
    threads.set_threads(None)
    assert torch.get_num_threads() == 4


TINY: dict[str, Any] = {
    "model": "config:tiny", "method": "ar", "max_new_tokens": 2, "limit": 1, "quiet": True, "no_score": True
}  # fmt: skip


def test_a_run_that_began_on_a_busy_machine_goes_on_as_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    decode = run_task._decode

    def watched(*given: Any) -> Any:
        seen.append(torch.get_num_threads())
        if len(seen) == 1:
            raise UsageError("interrupted")
        return decode(*given)

    monkeypatch.setattr(run_task, "_decode", watched)
    monkeypatch.setattr(environment, "git_state", lambda root: ("c" * 40, False))
    monkeypatch.setattr(loading, "taken_since", lambda before: 2.0)
    with pytest.raises(UsageError, match="interrupted"):
        specbench.run(**TINY, out=tmp_path)
    monkeypatch.setattr(loading, "taken_since", lambda before: 0.0)
    first = specbench.run(**TINY, out=tmp_path)
    assert seen == [2, 2], "on a quiet machine, too"
    second = specbench.run(**TINY, out=tmp_path)
    assert (seen, first.folder == second.folder) == ([2, 2, 4], False)
    monkeypatch.setattr(loading, "taken_since", lambda before: 3.0)
    assert specbench.run(**TINY, out=tmp_path).folder == second.folder, "others' work is no reason to measure again"
    specbench.run(**TINY, out=tmp_path, again=True)
    assert seen == [2, 2, 4, 1]
