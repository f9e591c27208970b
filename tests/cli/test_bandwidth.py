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
from support.wording import wording

from specbench.hardware import watching
from specbench.runner import bandwidth

RUN = ("run", "--model", "config:tiny", "--method", "jacobi", "--limit", 2, "--max-new-tokens", 6, "--no-score")
LINE = "memory 22.1 GB/s (20.3 to 23.0, 2 threads); ar reads 0.81 of it, pld 0.42"


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
    monkeypatch.setattr(bandwidth, "LEAST_WEIGHTS", 0)
    monkeypatch.setattr(bandwidth, "APART", 0.0)
    monkeypatch.setattr(bandwidth, "BandwidthProbe", Probe)
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
    assert wording(said.out)
    assert wording(said.err)

    shown = cli.ok("show", folder).out
    assert wording(shown)
    table = csv.DictReader(io.StringIO(cli.ok("export", folder, "--to", "csv", "--summary").out))
    assert [float(row["bandwidth_share"]) for row in table] == pytest.approx(shares)
    cli.ok("score", folder)
    again = runs.summary_on_disk(folder)
    assert again["bandwidth"] == summary["bandwidth"]
    assert [row["bandwidth_share"] for row in again["rows"]] == shares


@pytest.mark.usefixtures("read")
def test_a_resumed_run_has_the_readings_of_both_and_several_sequences_have_no_share(cli: Any, tmp_path: Path) -> None:
    folder = cli.made(tmp_path / "out", *RUN, "--concurrency", 2)
    assert [row["bandwidth_share"] for row in runs.summary_on_disk(folder)["rows"]] == [None, None]
    assert wording(cli.ok("show", folder).out)
    before = kept(folder)["readings"]
    assert [reading["segment"] for reading in before] == [0, 1, 2]
    for file in ("DONE", "summary.json"):
        (folder / file).unlink()
    lines = (folder / "requests.jsonl").read_text().splitlines(keepends=True)
    (folder / "requests.jsonl").write_text("".join(lines[:2]))
    assert "memory 2.0 GB/s" in cli.ok("show", folder).out, "of what there is"
    assert cli.made(tmp_path / "out", *RUN, "--concurrency", 2) == folder
    after = kept(folder)["readings"]
    assert after[:3] == before
    assert [reading["segment"] for reading in after[3:]] == [1, 2]


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
    monkeypatch.setattr(watching, "_SHORTEST_S", 0.0)
    said = cli.ok(*SWEEP, "--out", tmp_path)
    assert said.out.count("memory ") == 2
    assert wording(said.out)
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
def test_a_sweep_without_a_compiler_goes_on_and_says_why_once(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    monkeypatch.setattr(bandwidth, "LEAST_WEIGHTS", 0)
    monkeypatch.setenv("CXX", "/nonexistent")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    said = cli.ok(*SWEEP, "--out", tmp_path / "out", *(["--quiet"] if quiet else []))
    why = "no C++ compiler was found: CXX is /nonexistent"
    assert said.err.count(f"memory bandwidth is not read: {why}") == (0 if quiet else 2), "once for each part"
    assert kept(swept(tmp_path / "out") / "c1")["refused"] == why


@pytest.mark.usefixtures("read")
def test_a_sweep_waits_for_memory_that_gives_less(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = iter([8, 2, 2, 8])
    monkeypatch.setattr(Probe, "read", lambda self, threads: 1e9 * next(speeds, 8))
    cli.ok(*SWEEP, "--patience", 60, "--out", tmp_path)
    found = kept(swept(tmp_path) / "c1")
    assert {reading["bytes_per_s"] for reading in found["readings"]} == {8e9}
    assert found["waited_s"] > 0


@pytest.mark.parametrize("quiet", [False, True])
def test_without_a_compiler_a_run_goes_on_and_says_why(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    monkeypatch.setattr(bandwidth, "LEAST_WEIGHTS", 0)
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

    monkeypatch.setattr(bandwidth, "BandwidthProbe", never)
    if more:
        monkeypatch.setattr(bandwidth, "LEAST_WEIGHTS", 0)
    folder = cli.made(tmp_path / "out", *RUN, *more)
    assert not (folder / "bandwidth.json").exists()
    assert "bandwidth" not in runs.summary_on_disk(folder)
    assert "memory" not in cli.ok("show", folder).out


def made(out: Path, *, known: bool = True) -> Path:
    """A run of known figures."""

    def change(content: dict[str, Any]) -> None:
        content["bandwidth"] = {
            "bytes_per_s": 22.1e9, "low_bytes_per_s": 20.3e9, "high_bytes_per_s": 23e9, "readings": 3, "threads": [2],
        }  # fmt: skip
        for row, share in zip(content["rows"], (0.81, 0.42), strict=True):
            row["bandwidth_share"] = share

    records = [*runs.answers("ar", 8, decode_s=1.0), *runs.answers("pld", 8, decode_s=0.5)]
    return runs.folder(
        out, runs.run_config(["pld"], 8), records, lossless=dict.fromkeys(["ar", "pld"], runs.EXACT),
        change=change if known else None,
    )  # fmt: skip


@pytest.mark.parametrize("columns", [80, 140])
def test_it_stands_above_the_table_and_takes_nothing_of_its_width(cli: Any, tmp_path: Path, columns: int) -> None:
    said = cli.ok("show", made(tmp_path / "new"), columns=columns).out.splitlines()
    before = cli.ok("show", made(tmp_path / "old", known=False), columns=columns).out.splitlines()
    assert max(map(len, said)) <= columns
    assert said.count(LINE) == 1
    assert [line for line in said if line != LINE] == before, "a run without readings is shown as ever"


def test_a_page_has_the_same_sentence(cli: Any, tmp_path: Path) -> None:
    cli.ok("report", made(tmp_path / "runs"), "--out", tmp_path / "page")
    for name in ("report.html", "report.md"):
        assert LINE in (tmp_path / "page" / name).read_text()
    cli.ok("report", made(tmp_path / "old", known=False), "--out", tmp_path / "page")
    for name in ("report.html", "report.md"):
        assert "memory bandwidth" not in (tmp_path / "page" / name).read_text()
