"""What a CPU's memory does at best: by the probe of runs where that can be had, and else as a GPU's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from specbench.common.errors import EnvironmentRefused
from specbench.profiling import ceilings
from specbench.profiling.ceilings import measure_ceilings

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "_CPU_BYTES", 1 << 22)


def test_memory_is_read_by_the_probe_with_the_threads_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    lines: list[str] = []
    opened: list[str] = []

    class Probe:
        def __init__(self, nbytes: int, say: Callable[[str], None]) -> None:
            say(f"a probe of {nbytes}")

        def read(self, count: int, readings: int, settle_s: float) -> float:
            assert opened == ["open"]
            assert readings == 1, "between two copies"
            assert settle_s > 0.2, "right after torch's own work it is about a half"
            threads.append(count)
            return 7e9

        def __enter__(self) -> Probe:
            opened.append("open")
            return self

        def __exit__(self, *_: object) -> None:
            opened.append("closed")

    monkeypatch.setattr(ceilings, "BandwidthProbe", Probe)
    found = measure_ceilings(CPU, torch.float32, seconds=0.0, say=lines.append)
    assert found.read_bytes_per_s == pytest.approx(7e9), "as the probe says it: what settles it is not counted"
    assert threads == [torch.get_num_threads()] * 4, "one to begin with, and three that count"
    assert lines == [f"a probe of {1 << 22}"]
    assert opened == ["open", "closed"]


def test_without_the_probe_it_is_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(nbytes: int, say: Callable[[str], None]) -> None:
        raise EnvironmentRefused("no C++ compiler was found")

    monkeypatch.setattr(ceilings, "BandwidthProbe", refused)
    found = measure_ceilings(CPU, torch.float32, seconds=0.0)
    assert 1e8 < found.read_bytes_per_s < 1e15
