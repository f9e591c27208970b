"""A run whose GPU was throttled says so, line by line; one without a GPU says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import runs

from specbench.hardware.telemetry import Snapshot
from specbench.runner import session

TINY = ("run", "--model", "config:tiny", "--limit", 2, "--max-new-tokens", 4)


class Gpu:
    """Draws 500 W, and is held down by its power cap at every look from the ``slow_from``th on."""

    def __init__(self, slow_from: int) -> None:
        self.slow_from, self.looks, self.closed = slow_from, 0, False

    def look(self) -> Snapshot:
        self.looks += 1
        return Snapshot(
            at_ns=self.looks * 1_000_000_000, sm_clock_mhz=1755, memory_clock_mhz=3201, temperature_c=64,
            energy_mj=self.looks * 500_000, faults=("power cap",) if self.looks >= self.slow_from else (),
        )  # fmt: skip

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("columns", [80, 140])
def test_throttled_requests_are_counted_and_marked(cli: Any, tmp_path: Path, monkeypatch: Any, columns: int) -> None:
    # Warm-up takes four looks and each of the four requests two: the last request and the end of the one before.
    gpu = Gpu(slow_from=10)
    monkeypatch.setattr(session, "open_gpu", lambda device: gpu)
    result = cli.ok(*TINY, "--verbose", "--out", tmp_path, columns=columns)
    assert gpu.closed
    assert gpu.looks == 12
    (folder,) = tmp_path.iterdir()
    shown = cli("show", folder, "--verbose", columns=columns).out
    for text in (result.out, shown):
        assert max(map(len, text.splitlines()[:-1])) <= columns
        reported = "2 of 4 requests ran on a throttled GPU (power cap); show --requests marks them."
        assert reported in " ".join(text.split())
        why = "the GPU was throttled under 50% of the requests (limit 5%)"
        assert why in " ".join(text.split())
        lines = [line.split() for line in text[text.index("\nGPU ") + 1 :].splitlines()[2:4]]
        assert [line[0] for line in lines] == ["ar", "jacobi"]
        assert all(line[1:5] == ["1755", "500", "64", "125.000"] for line in lines)
    assert [record["gpu"]["throttled"] for record in runs.requests_on_disk(folder)] == [
        [],
        [],
        ["power cap"],
        ["power cap"],
    ]
    table = " ".join(cli("show", folder, "--requests", columns=columns).out.split())
    assert table.count("wrong, throttled: power cap") == 2
    assert table.count("wrong") == 4
