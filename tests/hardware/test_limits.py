"""Memory and cores of a process whose control group, of either version, has less than the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specbench.hardware import limits

GIB = 1 << 30


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine of 64 GiB, 40 of them free."""
    for name, at in (("_GROUP", "cgroup"), ("_GROUPS", "groups"), ("_INFO", "meminfo")):
        monkeypatch.setattr(limits, name, tmp_path / at)
    pages = {"SC_PHYS_PAGES": 16 << 20, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", lambda name: pages[name])
    (tmp_path / "meminfo").write_text(f"MemTotal: {64 << 20} kB\nMemAvailable:   {40 << 20} kB\n")
    return tmp_path


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(text)


def found() -> tuple[float, float | None]:
    free = limits.free_ram_bytes()
    return limits.ram_bytes() / GIB, None if free is None else free / GIB


def test_without_limits_it_is_what_the_kernel_says(groups: Path) -> None:
    assert found() == (64, 40), "no groups at all"
    (groups / "cgroup").write_text("0::/\n")
    group(groups / "groups", max="max\n", current=f"{9 * GIB}\n")
    assert found() == (64, 40)
    (groups / "meminfo").write_text("MemTotal: 3 kB\n")
    assert found() == (64, None)


def test_the_tightest_group_up_to_the_root_decides(groups: Path) -> None:
    (groups / "cgroup").write_text("1:cpu:/elsewhere\n0::/of/mine\n")
    kept = f"anon 5\ninactive_file {GIB}\nactive_file {2 * GIB}\nodd line here\n"
    group(groups / "groups" / "of" / "mine", max=f"{8 * GIB}", current=f"{7 * GIB}", stat=kept)
    group(groups / "groups" / "of", max=f"{32 * GIB}", current=f"{31 * GIB}")
    assert found() == (8, 1), "of its own 4 are left, of its parent's 1"
    group(groups / "groups" / "of", max=f"{32 * GIB}", current=f"{33 * GIB}")
    assert found() == (8, 0)


def test_groups_of_the_first_version(groups: Path) -> None:
    (groups / "cgroup").write_text("9:name=systemd:/\n4:memory:/mine\n")
    unlimited, mine = {"limit_in_bytes": f"{(1 << 63) - 4096}", "usage_in_bytes": f"{GIB}"}, groups / "groups/memory"
    group(mine, **unlimited)
    group(mine / "mine", limit_in_bytes=f"{8 * GIB}", usage_in_bytes=f"{7 * GIB}", stat=f"total_inactive_file {GIB}\n")
    assert found() == (8, 2)


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
    ],
)  # fmt: skip
def test_a_groups_quota_counts_as_cores(
    group: str, files: dict[str, str], cores_worth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "group").write_text(group)
    for name, text in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(text)
    monkeypatch.setattr(limits, "_GROUP", tmp_path / "group")
    monkeypatch.setattr(limits, "_GROUPS", tmp_path / "fs")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert limits.usable_cores() == cores_worth
