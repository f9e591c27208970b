"""Subprocesses, environments and machines that tests make: sandboxes, bare images, a fake NVML, a browser."""

from __future__ import annotations

import contextlib
import html
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tracemalloc
import venv
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement

from benchmarks.gpu_check import vendor
from specbench.common import registry
from specbench.evals.sandbox.sandbox import Confinement, Limits

# ------------------------------
# what a decoder does and keeps at a step, counted and not timed, to be held to what it was before.


def lines_run(package: str, work: Callable[[], object]) -> int:
    """Lines of a package's own code that some work runs, those of its loops each time."""
    count = 0
    inside = f"/{package.replace('.', '/')}/"

    def line(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def entered(frame: FrameType, event: str, arg: Any) -> Any:
        return line if inside in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def bytes_taken(work: Callable[[], object]) -> int:
    """The most memory that some work takes at a time: a copy of the text is seen though it is one line."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# ------------------------------
# how much slower this machine is, at the moment, than the one that limits of processor time were set on.


#: Processor seconds that :func:`_work` took there.
PACE = 0.036


def slowness() -> float:
    """1 where the machine is as fast as that one, or faster."""
    return max(1.0, _work() / PACE)


def _work() -> float:
    """Processor seconds of a piece of work like that of most tests: small tensors, and Python around them."""
    before, ones = time.process_time(), torch.ones(64, 64)
    for turn in range(3000):
        _ = {at: at * turn for at in range(20)}, (ones @ ones).softmax(-1).sum()
    return time.process_time() - before


# ------------------------------
# what tests of the sandbox share: two confinements, ways out of them, and the processes there are.


TIGHT = Limits(cpu_s=1, wall_s=1.5, memory=512 << 20)
BARE = Confinement(seccomp=True, landlock=0, namespaces=False)  # what a strict container leaves

# Ways out, as expressions.
PROCESSES = {
    "fork": "os.fork()", "fork bomb": "[os.fork() for _ in range(10 ** 6)]",
    "daemon": "os.setsid() if os.fork() == 0 else None", "thread": "threading.Thread(target=int).start()",
    "exec": "os.execv('/bin/true', ['true'])", "shell": "subprocess.run('true', shell=True)",
    "spawn": "os.posix_spawn('/bin/true', ['true'], {})", "raw clone": "call(56 if x86 else 220, 0x11, 0, 0, 0, 0)",
    "raw vfork": "call(58, ) if x86 else denied()", "clone3": "call(435, None, 88)",
}  # fmt: skip
NETWORK = {
    "tcp": "socket.socket()", "udp": "socket.socket(type=socket.SOCK_DGRAM)", "unix": "socket.socket(socket.AF_UNIX)",
    "pair": "socket.socketpair()", "connect": "socket.create_connection(('127.0.0.1', PORT), 1)",
    "io_uring": "call(425, 8, b'0' * 120)",
}  # fmt: skip
SIGNALS = {
    "parent": "os.kill(os.getppid(), 9)", "scorer": "os.kill(SCORER, 9)", "everybody": "os.kill(-1, 9)",
    "own group": "os.killpg(0, 9)", "leave the group": "os.setsid()", "leave the group too": "os.setpgid(0, 0)",
    "by descriptor": "fcntl.fcntl(0, fcntl.F_SETOWN, SCORER)",
    "by limit": "resource.prlimit(SCORER, resource.RLIMIT_CPU, (1, 1))",
    "by priority": "os.setpriority(os.PRIO_PROCESS, SCORER, 19)", "by affinity": "os.sched_setaffinity(SCORER, {0})",
    "ptrace": "call(101 if x86 else 117, 16, SCORER, 0, 0)",
    "write memory": "call(311 if x86 else 271, SCORER, 0, 0, 0, 0, 0)",
    "outlive": "call(157 if x86 else 167, 1, 0, 0, 0, 0)",
}  # fmt: skip
FILES = {
    "write outside": "open(OUTSIDE + '/new', 'w')",
    "overwrite": "open(OUTSIDE + '/old', 'w')",
    "append": "os.open(OUTSIDE + '/old', os.O_WRONLY | os.O_APPEND)",
    "truncate while reading": "os.open(OUTSIDE + '/old', os.O_RDONLY | os.O_TRUNC)",
    "truncate": "os.truncate(OUTSIDE + '/old', 0)",
    "remove": "os.remove(OUTSIDE + '/old')",
    "rename": "os.rename(OUTSIDE + '/old', OUTSIDE + '/new')",
    "make a folder": "os.mkdir(OUTSIDE + '/new')",
    "link": "os.link(OUTSIDE + '/old', OUTSIDE + '/new')",
    "symbolic link": "os.symlink('/', OUTSIDE + '/new')",
    "mode": "os.chmod(OUTSIDE + '/old', 0)",
    "owner": "os.chown(OUTSIDE + '/old', 0, 0)",
    "times": "os.utime(OUTSIDE + '/old')",
    "pipe": "os.mkfifo(OUTSIDE + '/new')",
    "unnamed file": "os.open(OUTSIDE, os.O_TMPFILE | os.O_WRONLY)",
    "memory file": "os.memfd_create('x')",
    "parent folder": "open('../new', 'w')",
    "by another root": "os.chroot(OUTSIDE)",
    "mount": "call(165 if x86 else 40, b'x', b'/', b'tmpfs', 0, 0)",
    "namespace": "call(272 if x86 else 97, 0x10000000)",
}


def processes() -> dict[int, tuple[int, bool]]:
    """Every process: its parent, and whether a seccomp filter holds it."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # gone meanwhile
            fields = dict(line.split(":\t", 1) for line in path.read_text().splitlines() if ":\t" in line)
            found[int(path.parent.name)] = (int(fields["PPid"]), fields.get("Seccomp") == "2")
    return found


def children() -> set[int]:
    return {pid for pid, (parent, _) in processes().items() if parent == os.getpid()}


# ------------------------------
# Packages of other people: pip installs them into a folder, which this process or a child gets on its path.


def install(package: Path, site: Path) -> None:
    """Installs a source tree into the folder ``site``, without a network; the tree itself is left as it is."""
    copy = site.with_name(f"{site.name}-source") / package.name
    shutil.copytree(package, copy)
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def visible(site: Path) -> Iterator[None]:
    """What is in ``site`` is installed for as long as this lasts."""
    before = set(sys.modules)
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()
    registry._found.cache_clear()
    try:
        yield
    finally:
        sys.path.remove(str(site))
        registry._found.cache_clear()
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(site)):
                del sys.modules[name]


def python(*args: object, cwd: Path, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    """``python *args`` in ``cwd``, with what is in ``site`` besides all else."""
    env = dict(os.environ) if site is None else {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, *map(str, args)]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)


# ------------------------------
# A page in a headless browser, at any width, without a network.


BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--allow-file-access-from-files",
    "--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom",
)  # fmt: skip

# A browser's window has a least width; a frame has none.
_FRAME = """<!DOCTYPE html><body style="margin:0">
<iframe id="page" src="{page}" style="width:{width}px;height:2000px;border:0"></iframe><pre id="seen"></pre>
<script>window.addEventListener("load", () => {{
  const inner = document.getElementById("page").contentWindow, page = inner.document;
  const look = {look};
  document.getElementById("seen").textContent = JSON.stringify(look(page, inner));
}});</script>"""


@dataclass(frozen=True)
class Seen:
    """What a look returned, and what the browser's console said meanwhile."""

    found: Any
    console: list[str]


def look_at(page: Path, width: int, look: str, scratch: Path, *, dark: bool = False) -> Seen:
    """Open an HTML page, ``width`` CSS pixels wide, and evaluate ``look(document, window)`` in JavaScript, to JSON."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no browser ({', '.join(BROWSERS)}) is installed")
    frame = scratch / f"frame-{width}-{dark}.html"
    frame.write_text(_FRAME.format(page=page.as_uri(), width=width, look=look))
    flags = [*_FLAGS, f"--user-data-dir={scratch / 'profile'}"]
    flags += ["--blink-settings=preferredColorScheme=0"] if dark else []
    done = subprocess.run([browser, *flags, frame.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    result = re.search('<pre id="seen">(.+?)</pre>', done.stdout, re.DOTALL)
    assert result, done.stderr
    return Seen(json.loads(html.unescape(result[1])), [line for line in done.stderr.splitlines() if "CONSOLE" in line])


# ------------------------------
# a Python that finds what an image for GPUs has and nothing else of this machine.
#
# That is torch, triton, transformers, numpy, pandas and what they require, without what a bundle brings: some
# releases of transformers require pydantic and typer, and images with others have neither.


PACKAGES = ("torch", "triton", "transformers", "numpy", "pandas", "setuptools")
BROUGHT = [name for group in vendor.GROUPS.values() for name in group]


def bare_image(folder: Path, *, bundled: bool = False) -> Path:
    """The interpreter of an environment whose packages are links to those that are installed here."""
    venv.create(folder, with_pip=False, symlinks=True)
    place = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for found in [*closure(), *(_installed(BROUGHT) if bundled else ())]:
        for top in _tops(found):
            if not (place / top).exists():
                (place / top).symlink_to(str(found.locate_file(top)))
    return folder / "bin" / "python"


def modules() -> set[str]:
    """First names of the modules of image and bundle together."""
    packages = [*closure(), *_installed(BROUGHT)]
    return {top.partition(".")[0] for found in packages for top in _tops(found)}


def closure() -> list[Distribution]:
    """The packages of the image, with all that they require."""
    brought = {_plain(name) for name in BROUGHT} - {"typing-extensions"}
    return [found for name, found in _with_requirements({}, PACKAGES).items() if name not in brought]


def _tops(found: Distribution) -> set[str]:
    """Files and folders of a package, as they lie next to those of others."""
    return {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def _with_requirements(known: dict[str, Distribution], wanted: Iterable[str]) -> dict[str, Distribution]:
    for found in _installed(name for name in wanted if _plain(name) not in known):
        known[_plain(found.name)] = found
        _with_requirements(known, _required(found))
    return known


def _installed(names: Iterable[str]) -> Iterator[Distribution]:
    """Those of some packages that are here: a platform may do without one, and a user without an optional one."""
    for name in names:
        with suppress(PackageNotFoundError):
            yield distribution(name)


def _required(found: Distribution) -> Iterator[str]:
    for line in found.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name


# ------------------------------
# a machine with one GPU, which answers as configured.


UUID = "11111111-2222-3333-4444-555555555555"
REASONS = 0x1 | 0x4 | 0x40  # idle, power cap, hardware thermal slowdown


class FakeNvml(ModuleType):
    """NVML with one GPU; queries in ``silent`` are not supported by it."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = 0, 1

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.open, self.silent = 0, set[str]()
        self.reasons, self.pids, self.busy = REASONS, [os.getpid()], 0
        self.answers: dict[str, Any] = {
            "nvmlDeviceGetClockInfo": lambda kind: {1: 1980, 2: 3201}[kind],
            "nvmlDeviceGetTemperature": lambda sensor: 61,
            "nvmlDeviceGetTotalEnergyConsumption": lambda: 5_000_000,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda: self.reasons,
            "nvmlDeviceGetEnforcedPowerLimit": lambda: 700_000,
            "nvmlDeviceGetComputeRunningProcesses": lambda: [SimpleNamespace(pid=pid) for pid in self.pids],
            "nvmlDeviceGetUtilizationRates": lambda: SimpleNamespace(gpu=self.busy),
            "nvmlDeviceGetViolationStatus": lambda policy: SimpleNamespace(violationTime=100 + policy, referenceTime=9),
        }

    def nvmlInit(self) -> None:  # noqa: N802 (NVML's own names)
        if "nvmlInit" in self.silent:
            raise self.NVMLError("driver not loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.65.06"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != f"GPU-{UUID}":
            raise self.NVMLError("not found")
        return "handle"

    def __getattr__(self, query: str) -> Any:
        def ask(handle: str, *arguments: Any) -> Any:
            assert handle == "handle"
            if query in self.silent:
                raise self.NVMLError("not supported")
            return self.answers[query](*arguments)

        return ask
