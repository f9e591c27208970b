"""Memory next to a run: what the folder keeps of it, and where people see it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import runs

from specbench.runner import monitor

RUN = ("run", "--model", "config:tiny", "--method", "jacobi", "--limit", 2, "--max-new-tokens", 6, "--no-score")


class Probe:
    """Reads 1 GB/s, then 2, then 3."""

    opened = 0

    def __init__(self, say: Callable[[str], None]) -> None:
        say("building a probe")
        Probe.opened += 1
        self._read = 0

    def read(self, threads: int) -> float:
        self._read += 1
        return 1e9 * self._read

    def close(self) -> None:
        Probe.opened -= 1


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory is read next to a tiny model too, before each stretch."""
    monkeypatch.setattr(monitor, "LEAST_WEIGHTS", 0)
    monkeypatch.setattr(monitor, "APART_S", 0.0)
    monkeypatch.setattr(monitor, "BandwidthProbe", Probe)
    yield
    assert Probe.opened == 0, "its memory is given back"


def kept(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "bandwidth.json").read_text()))


@pytest.mark.usefixtures("read")
def test_a_run_keeps_its_readings_and_says_what_each_method_read(cli: Any, tmp_path: Path) -> None:
    result = cli.ok(*RUN, "--verbose", "--out", tmp_path / "out")
    (folder,) = (tmp_path / "out").iterdir()
    found, summary = kept(folder), runs.summary_on_disk(folder)
    assert [reading["segment"] for reading in found["readings"]] == [0, 1, 2, 3, 4]
    assert found["forwards"].keys() == {"ar", "jacobi"}
    assert (summary["bandwidth"]["bytes_per_s"], summary["bandwidth"]["readings"]) == (3e9, 5)
    shares = [row["bandwidth_share"] for row in summary["rows"]]
    for row, share in zip(summary["rows"], shares, strict=True):
        # The cache of a tiny model is no small part of what a forward reads.
        least, most = found["forwards"][row["method"]]["nbytes"]
        assert least < share * 3e9 * row["step_s"] < most
    assert "3.0 GB/s (1.0 to 5.0" in result.out

    shown = cli.ok("show", folder, "--verbose").out
    assert "3.0 GB/s (1.0 to 5.0" in shown
    table = csv.DictReader(io.StringIO(cli.ok("report", folder, "--to", "csv", "--summary").out))
    assert [float(row["bandwidth_share"]) for row in table] == pytest.approx(shares)
    cli.ok("score", folder)
    again = runs.summary_on_disk(folder)
    assert again["bandwidth"] == summary["bandwidth"]
    assert [row["bandwidth_share"] for row in again["rows"]] == shares
