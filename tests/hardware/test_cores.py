"""How many cores other processes take, by the kernel's own count."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specbench.hardware import cores
from specbench.hardware.cores import Others, usable_cores

BEFORE = """cpu  900 0 0 0 0 0 0 0 0 0
cpu0 100 10 20 5000 70 1 2 3 9 9
cpu1 200 20 30 6000 80 4 5 6 9 9
cpu2 700 70 70 7000 70 7 7 7 7 7
"""
AFTER = """cpu  900 0 0 0 0 0 0 0 0 0
cpu0 180 15 25 5010 70 2 3 8 9 9
cpu1 210 20 30 6090 90 4 5 6 9 9
cpu2 900 90 90 7000 70 9 9 9 7 7
"""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, float]:
    """Times that this process and the world have; and the kernel's count, of three cores of which two are ours."""
    now = {"process": 10.0, "world": 100.0}
    (tmp_path / "stat").write_text(BEFORE)
    monkeypatch.setattr(cores, "_STAT", tmp_path / "stat")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    monkeypatch.setattr(time, "process_time", lambda: now["process"])
    monkeypatch.setattr(time, "monotonic", lambda: now["world"])
    return now


def test_what_others_take_is_what_is_busy_and_not_ours(clock: dict[str, float]) -> None:
    others = Others()
    cores._STAT.write_text(AFTER)
    clock["process"], clock["world"] = 10.17, 101.0
    # 0.97 s on core 0 (user, nice, system, interrupts, stolen) and 0.10 s on core 1, of which 0.17 s are ours.
    assert others.cores() == pytest.approx(0.97 + 0.10 - 0.17)


def test_too_short_a_time_and_a_kernel_that_does_not_tell_say_nothing(clock: dict[str, float]) -> None:
    others = Others()
    clock["world"] = 100.2
    assert others.cores() is None
    clock["world"] = 101.0
    assert others.cores() == 0.0
    cores._STAT.unlink()
    assert others.cores() is None


def test_a_busy_process_is_seen() -> None:
    mine = sorted(os.sched_getaffinity(0))[0]
    busy = subprocess.Popen([sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{mine}}})\nwhile True: pass"])
    try:
        time.sleep(0.3)  # an interpreter starts
        others = Others()
        time.sleep(0.6)
        taken = others.cores()
    finally:
        busy.kill()
        busy.wait()
    assert taken is not None
    assert 0.5 < taken <= usable_cores() + 0.2


@pytest.mark.parametrize(
    ("group", "files", "cores_worth"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "250000 100000\n"}, 3),  # 2.5
        ("0::/a\n", {"a/cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("2:cpu,cpuacct:/c\n", {"cpu,cpuacct/c/cpu.cfs_quota_us": "200000\n",
                                "cpu,cpuacct/c/cpu.cfs_period_us": "100000\n"}, 2),
        ("2:cpu:/c\n", {"cpu/c/cpu.cfs_quota_us": "-1\n", "cpu/c/cpu.cfs_period_us": "100000\n"}, 8),
        ("0::/a\n", {"a/cpu.max": "9900000 100000\n"}, 8),
        ("0::/a\n", {"a/cpu.max": "what is this\n"}, 8),
        ("nonsense\n\n:::\n", {}, 8),
    ],
)  # fmt: skip
def test_a_groups_quota_counts_as_cores(
    group: str, files: dict[str, str], cores_worth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "group").write_text(group)
    for name, text in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(text)
    monkeypatch.setattr(cores, "_GROUP", tmp_path / "group")
    monkeypatch.setattr(cores, "_GROUPS", tmp_path / "fs")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert usable_cores() == cores_worth
