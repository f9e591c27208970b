"""Memory that a process may have where its group has less than the machine, in control groups of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specbench.hardware import ram

GIB = 1 << 30


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine of 64 GiB, 40 of them free."""
    for name, at in (("_GROUP", "cgroup"), ("_GROUPS", "groups"), ("_INFO", "meminfo")):
        monkeypatch.setattr(ram, name, tmp_path / at)
    pages = {"SC_PHYS_PAGES": 16 << 20, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", lambda name: pages[name])
    (tmp_path / "meminfo").write_text(f"MemTotal: {64 << 20} kB\nMemAvailable:   {40 << 20} kB\n")
    return tmp_path


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(text)


def found() -> tuple[float, float | None]:
    free = ram.free_ram_bytes()
    return ram.ram_bytes() / GIB, None if free is None else free / GIB


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
