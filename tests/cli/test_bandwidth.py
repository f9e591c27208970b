"""Memory beside a run: what the folder keeps of it, and where people see it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import runs

from specbench.hardware import monitor as counters
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
    """Memory is read beside a tiny model too, before each stretch."""
    monkeypatch.setattr(monitor, "LEAST_WEIGHTS", 0)
    monkeypatch.setattr(monitor, "APART_S", 0.0)
    monkeypatch.setattr(monitor, "BandwidthProbe", Probe)
    yield
    assert Probe.opened == 0, "its memory is given back"


def kept(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "bandwidth.json").read_text()))


@pytest.mark.usefixtures("read")
def test_a_run_keeps_its_readings_and_says_what_each_method_read(cli: Any, tmp_path: Path) -> None:
    said = cli.ok(*RUN, "--out", tmp_path / "out")
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
    assert "3.0 GB/s (1.0 to 5.0" in said.out

    shown = cli.ok("show", folder).out
    assert "3.0 GB/s (1.0 to 5.0" in shown
    table = csv.DictReader(io.StringIO(cli.ok("export", folder, "--to", "csv", "--summary").out))
    assert [float(row["bandwidth_share"]) for row in table] == pytest.approx(shares)
    cli.ok("score", folder)
    again = runs.summary_on_disk(folder)
    assert again["bandwidth"] == summary["bandwidth"]
    assert [row["bandwidth_share"] for row in again["rows"]] == shares


SWEEP = (
    *("sweep", "--model", "config:tiny", "--method", "jacobi", "--grid", "n=2,4", "--grid", "concurrency=1,2"),
    *("--limit", 2, "--max-new-tokens", 6, "--no-score"),
)


def swept(out: Path) -> Path:
    (folder,) = out.glob("sweep-*")
    return folder


@pytest.mark.usefixtures("read")
def test_each_part_of_a_sweep_keeps_its_readings_and_looks(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "_SHORTEST_S", 0.0)
    said = cli.ok(*SWEEP, "--out", tmp_path)
    assert said.out.count("memory ") == 2
    assert "GB/s" in said.out
    for part, shared in (("c1", False), ("c2", True)):
        folder = swept(tmp_path) / part
        found, summary = kept(folder), runs.summary_on_disk(folder)
        stretches = 1 + max(request["segment"] for request in runs.requests_on_disk(folder))
        assert [reading["segment"] for reading in found["readings"]] == [*range(stretches), stretches]
        assert found["forwards"].keys() == {"ar", "jacobi n=2", "jacobi n=4"}
        assert summary["bandwidth"]["readings"] == len(found["readings"])
        assert [row["bandwidth_share"] is None for row in summary["rows"]] == [shared] * 3
        assert json.loads((folder / "watch.json").read_text())["looks"]
        assert "memory " in cli.ok("show", folder).out
    before = {part: kept(swept(tmp_path) / part)["readings"] for part in ("c1", "c2")}
    cli.ok(*SWEEP, "--out", tmp_path)
    assert {part: kept(swept(tmp_path) / part)["readings"] for part in before} == before, "nothing was decoded"
    wider = tuple("n=2,4,8" if part == "n=2,4" else part for part in SWEEP)
    cli.ok(*wider, "--out", tmp_path)
    after = kept(swept(tmp_path) / "c1")
    assert after["readings"][: len(before["c1"])] == before["c1"]
    assert len(after["readings"]) > len(before["c1"])
    assert after["forwards"].keys() == {"ar", "jacobi n=2", "jacobi n=4", "jacobi n=8"}


@pytest.mark.parametrize("quiet", [False, True])
def test_without_a_compiler_a_run_goes_on_and_says_why(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    monkeypatch.setattr(monitor, "LEAST_WEIGHTS", 0)
    monkeypatch.setenv("CXX", "/nonexistent")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    said = cli.ok(*RUN, "--out", tmp_path / "out", *(["--quiet"] if quiet else []))
    (folder,) = (tmp_path / "out").iterdir()
    why = "no C++ compiler was found: CXX is /nonexistent"
    assert said.err.count(f"memory bandwidth is not read: {why}") == (0 if quiet else 1)
    assert kept(folder) | {"forwards": {}} == {"forwards": {}, "readings": [], "refused": why, "waited_s": 0.0}
    assert runs.summary_on_disk(folder)["bandwidth"] == {"refused": why}
    assert [row["bandwidth_share"] for row in runs.summary_on_disk(folder)["rows"]] == [None, None]
    assert f"{why}" in said.out


@pytest.mark.parametrize("more", [(), ("--simulate-acceptance", "3")])
def test_a_tiny_model_and_a_lottery_are_not_read_beside(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(monitor, "BandwidthProbe", never)
    if more:
        monkeypatch.setattr(monitor, "LEAST_WEIGHTS", 0)
    folder = cli.made(tmp_path / "out", *RUN, *more)
    assert not (folder / "bandwidth.json").exists()
    assert "bandwidth" not in runs.summary_on_disk(folder)
    assert "memory" not in cli.ok("show", folder).out
