"""The check for growth: sixty requests of the real command have none, and what grows is named."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from soak.run import VARIANTS, soak
from soak.watching import Sample, Watch, faults, watched

REQUESTS, TOKENS = 60, 2


@pytest.fixture(autouse=True, scope="module")
def _loaded() -> None:
    """What a run imports, torch first, is no test's time."""
    for name in ("run_task", "loading", "projecting", "prompts"):
        importlib.import_module(f"specbench.runner.{name}")


def decoded(folder: Path, *options: str) -> Watch:
    with watched(REQUESTS // 10) as watch:
        soak(folder, REQUESTS, (*options, "--quiet"), watch, TOKENS)
    return watch


def kinds(samples: list[Sample]) -> set[str]:
    """What grew; the CPU time of six requests is too short to say anything."""
    return {fault.partition(":")[0] for fault in faults(samples)} - {"CPU time"}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_run_keeps_its_records_alone(tmp_path: Path, name: str, capsys: Any) -> None:
    watch = decoded(tmp_path, *VARIANTS[name])
    assert [sample.requests for sample in watch.samples] == [*range(6, 61, 6)]
    assert kinds(watch.samples) == set()
    assert all(sample.cpu_s > 0 for sample in watch.samples)


FLAT = [Sample(100 * at, 500_000_000, 50_000 * at, 8, 2, 0, 0.02) for at in range(1, 41)]


@pytest.mark.parametrize(
    ("name", "grows"),
    [
        ("memory", lambda at: {"resident": 500_000_000 + 400_000 * at}),
        ("files", lambda at: {"files": 8 + (at == 40)}),
        ("threads", lambda at: {"threads": 2 + at // 10}),
        ("children", lambda at: {"children": at // 40}),
        ("CPU time", lambda at: {"cpu_s": 0.02 + 0.0001 * at}),
    ],
)
def test_what_grows_is_named(name: str, grows: Callable[[int], dict[str, Any]]) -> None:
    (fault,) = faults([replace(sample, **grows(at)) for at, sample in enumerate(FLAT, 1)])
    assert fault.startswith(name)


@pytest.mark.parametrize(
    "stays",
    [
        lambda at: {},
        lambda at: {"resident": 500_000_000 + 300_000 * at, "records": 200_000 * at},  # records, and 0.7% in addition
        lambda at: {"resident": 400_000_000 + 100_000_000 * (at > 3)},  # warm-up
        lambda at: {"threads": 9 - (at > 20)},
        lambda at: {"cpu_s": 0.2 if at in (1, 38) else 0.02},  # a sample that something else disturbed
    ],
)
def test_what_stays_or_is_warm_up_is_none(stays: Callable[[int], dict[str, Any]]) -> None:
    assert faults([replace(sample, **stays(at)) for at, sample in enumerate(FLAT, 1)]) == []
