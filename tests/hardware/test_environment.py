"""What is recorded and what is kept out, that a resumed run is on the same code and machine, and what doctor says."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.processes import REASONS, UUID, FakeNvml

from specbench.hardware import environment
from specbench.hardware.environment import Device, Environment, alike, capture, fingerprint, git_state, is_this_machine
from specbench.profiling.doctor import Check, doctor_checks


def check(name: str, out: Path = Path()) -> Check:
    (found,) = (one for one in doctor_checks(out) if one.name == name)
    return found


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """A machine with one H200 that PyTorch and NVML see."""
    properties = SimpleNamespace(name="NVIDIA H200", total_memory=150_110_011_392, major=9, minor=0, uuid=UUID)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: properties)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: properties.name)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    fake = FakeNvml()
    fake.silent = {"nvmlDeviceGetTemperature"}
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """Versions that replace those installed; None for not installed."""
    replaced: dict[str, str | None] = {}
    real = importlib.metadata.version

    def version(name: str) -> str:
        found = replaced[name] if name in replaced else real(name)
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)
    return replaced


# Capture


def test_a_captured_environment_survives_json() -> None:
    captured = capture("cpu")
    assert Environment.model_validate_json(captured.model_dump_json()) == captured
    assert captured.device == Device(kind="cpu", name="cpu", count=1)
    assert captured.versions["torch"] == importlib.metadata.version("torch")
    assert captured.cpu.torch_threads == torch.get_num_threads()
    assert captured.cpu.model
    assert 1 <= captured.cpu.usable_cores <= captured.cpu.logical_cores
    assert captured.ram_bytes > 1 << 28
    assert captured.python == platform.python_version()


def test_environments_are_alike_but_for_what_is_momentary() -> None:
    one = capture("cpu")
    busy = one.model_copy(update={"load_average": (9.0, 9.0, 9.0), "ram_bytes": 1})
    assert alike(one, busy)
    assert not alike(one, busy.model_copy(update={"platform": "another"}))


def test_no_user_host_or_path_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = namedtuple("machine", "system node release version machine processor")
    uname = machine("Linux", "alices-laptop", "6.1.0", "#1 SMP alice@build-host", "x86_64", "")
    monkeypatch.setattr(platform, "uname", lambda: uname)
    monkeypatch.setattr(platform, "_platform_cache", {}, raising=False)
    for name in ("HOME", "USER", "LOGNAME", "HOSTNAME", "HF_TOKEN", "HF_HOME", "PYTHONPATH"):
        monkeypatch.setenv(name, f"alice-{name}")
    monkeypatch.setenv("PYTORCH_KERNEL_CACHE_PATH", "/home/alice/kernels")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    captured = capture("cpu")
    assert captured.kernel == "6.1.0"
    assert "alice" not in captured.model_dump_json()
    assert captured.variables["OMP_NUM_THREADS"] == "2"
    assert captured.variables["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert captured.variables["PYTORCH_KERNEL_CACHE_PATH"] == "<path>"
    assert str(Path(__file__).parent) not in captured.model_dump_json()


def test_a_gpu_is_described_by_torch_and_nvml(nvml: FakeNvml) -> None:
    for name in ("cuda", "cuda:0"):
        device = capture(name).device
        assert (device.kind, device.name, device.count) == ("cuda", "NVIDIA H200", 1)
        assert (device.memory_bytes, device.compute_capability, device.cuda) == (150_110_011_392, "9.0", "12.8")
        assert (device.driver, device.sm_clock_mhz, device.memory_clock_mhz) == ("580.65.06", 1980, 3201)
        assert device.power_limit_w == 700.0
        assert device.temperature_c is None  # not supported here; other values are still reported
        assert device.throttle_reasons == ["idle", "power cap", "hardware thermal slowdown"]
    assert nvml.open == 0


def test_a_fingerprint_is_stable_and_moves_with_code_and_machine(versions: dict[str, str | None]) -> None:
    captured = capture("cpu")
    first = fingerprint(captured)
    later = captured.model_copy(update={"load_average": (9.0, 9.0, 9.0), "variables": {"OMP_NUM_THREADS": "1"}})
    assert fingerprint(later) == first
    for update in (
        {"specbench": "9.9"},
        {"git_commit": "0" * 40},
        {"git_dirty": "other"},
        {"versions": {**captured.versions, "torch": "9.9"}},
        {"versions": {**captured.versions, "transformers": "9.9"}},
        {"device": captured.device.model_copy(update={"name": "another"})},
        {"cpu": captured.cpu.model_copy(update={"model": "another"})},
        {"cpu": captured.cpu.model_copy(update={"cpuid": "0/0/0"})},
    ):
        assert fingerprint(captured.model_copy(update=update)) != first, update


def test_generations_of_one_name_are_distinguished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reads(text: str) -> None:
        monkeypatch.setattr(environment, "CPUINFO", tmp_path / "cpuinfo")
        (tmp_path / "cpuinfo").write_text(text)

    genoa = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\nstepping\t: 1\n"
    reads(genoa)
    then = capture("cpu")
    assert then.cpu.cpuid == "25/17/1"
    assert is_this_machine(then.model_dump(), gpu=None)
    reads(genoa.replace("model\t\t: 17", "model\t\t: 2"))
    assert not is_this_machine(then.model_dump(), gpu=None)
    before_it_was_recorded = then.model_dump()
    del before_it_was_recorded["cpu"]["cpuid"]
    assert is_this_machine(before_it_was_recorded, gpu=None)
    reads("processor\t: 0\nCPU part\t: 0xd40\n")  # an ARM has no such fields
    assert capture("cpu").cpu.cpuid is None


def test_a_resting_gpu_and_the_users_own_clocks_are_no_faults() -> None:
    assert [environment.throttle_faults(reasons) for reasons in (0x0, 0x3)] == [[], []]
    assert environment.throttle_faults(REASONS) == ["power cap", "hardware thermal slowdown"]
    assert environment.throttle_faults(0x9) == ["hardware slowdown"]


# Git


def git(root: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-C", root, *identity, *arguments], check=True, capture_output=True, text=True, env=env
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    (root / "specbench").mkdir(parents=True)
    (root / "specbench" / "engine.py").write_text("old\n")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "first")
    return root


def test_checkouts_of_ours_and_others(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git_state(checkout) == (git(checkout, "rev-parse", "HEAD"), False)
    assert git_state(tmp_path) == (None, None)
    assert git_state(checkout / "specbench") == (None, None)  # as when installed within another project's checkout
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert git_state(checkout) == (git(checkout, "rev-parse", "HEAD"), False)
    monkeypatch.setenv("PATH", "")  # a machine without git
    assert git_state(checkout) == (None, None)


def test_only_sources_make_it_dirty(checkout: Path) -> None:
    for file, dirty in (
        ("results/20261121T040102Z-ar/run.json", False),  # or no run could be resumed
        ("notes.md", False),
        ("methods/mine/decoder.py", True),  # a new method is code, tracked or not
        ("specbench/engine.py", True),
    ):
        (checkout / file).parent.mkdir(parents=True, exist_ok=True)
        (checkout / file).write_text("new\n")
        assert git_state(checkout)[1] is dirty, file
        if not file.startswith("specbench"):
            (checkout / file).unlink()
    empty = checkout / "empty"
    empty.mkdir()
    git(empty, "init", "--quiet")
    assert git_state(empty) == (None, False)


# Doctor


def test_every_complaint_comes_with_advice(tmp_path: Path) -> None:
    checks = doctor_checks(tmp_path)
    assert [one.name for one in checks[:4]] == ["python", "torch", "transformers", "device"]
    assert len({one.name for one in checks}) == len(checks) >= 10
    assert [one for one in checks if bool(one.advice) == (one.status == "ok")] == []


def test_versions_outside_the_supported_range(versions: dict[str, str | None], monkeypatch: pytest.MonkeyPatch) -> None:
    assert check("python").status == "ok"
    monkeypatch.setattr(platform, "python_version", lambda: "3.9.18")
    found = check("python")
    assert found.status == "fail"
    assert found.detail.startswith("3.9.18 is not ")
    assert ">=3.10" in found.advice
    for version, status in (("5.16.9", "fail"), ("5.17.0", "ok"), ("6.0.0", "fail")):
        versions["transformers"] = version
        found = check("transformers")
        assert (found.status, ">=5.17" in found.detail) == (status, status == "fail")
        assert found.advice.startswith("pip install 'transformers" if status == "fail" else "")
    versions["torch"] = "2.13.0+cpu"  # a build's local version is accepted
    assert check("torch").status == "ok"
    versions["torch"] = None
    assert check("torch") == Check("torch", "fail", "not installed", "pip install 'torch>=2.8'")


def test_a_small_disk_or_an_unwritable_output_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for free, status in ((1 << 31, "ok"), (1 << 29, "warn")):
        asked: list[Path] = []
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda path, asked=asked, usage=usage: asked.append(path) or usage)
        assert check("disk", tmp_path / "runs" / "today").status == status
        assert asked == [tmp_path]  # the nearest folder that exists
    monkeypatch.setattr(os, "access", lambda *_: False)  # chmod would not stop root
    assert check("disk", tmp_path).status == "fail"


def test_throttled_clocks_and_other_users_of_the_gpu(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    for reasons, status in ((0, "ok"), (0x1 | 0x2, "ok"), (REASONS, "warn")):
        nvml.reasons = reasons
        found = check("gpu clocks")
        assert found.status == status
        assert ("power cap, hardware thermal slowdown" in found.detail) == (status == "warn")
    users: tuple[tuple[list[int], int, str], ...] = (([], 0, "ok"), ([], 5, "ok"), ([1], 0, "warn"), ([], 60, "warn"))
    for others, busy, status in users:
        nvml.pids, nvml.busy = [os.getpid(), *others], busy  # also seen where other containers' processes are not
        assert check("gpu users").status == status
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert check("gpu state").advice == "pip install 'specbench-llm[gpu]'"
