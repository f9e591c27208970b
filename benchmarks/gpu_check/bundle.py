"""Make one file with the project and the packages that a GPU image may lack, for a machine without a network.

    make gpu-bundle [PYTHON=3.12]

Wheels are unpacked in it, so that nothing has to be installed. Compiled wheels are for one Python version on Linux,
x86-64. Weights are not included.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.gpu_check import vendor

DEFAULT_PYTHON = "3.12"
MOST_BYTES = 60 << 20
NAME = "specbench-gpu-check"

#: Parts of the project to include; left out are results, reports and developer tools.
_PROJECT = (
    "specbench", "methods", "tasks", "benchmarks", "tests", "Makefile", "pyproject.toml", "constraints.txt",
    "README.md", "LICENSE",
)  # fmt: skip
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
_LEFT_OUT = ("__pycache__", ".pytest_cache", ".mypy_cache")
_PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--python", default=DEFAULT_PYTHON, help=f"Python version of the GPU machine; default {DEFAULT_PYTHON}"
    )
    parser.add_argument("--out", type=Path, default=Path("dist"))
    args = parser.parse_args()
    python = python_version(args.python)
    if python is None:
        print(f"--python {args.python}: write a version, such as 3.12", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / f"{NAME}-py{python.replace('.', '')}.tar.gz"
    try:
        write(file, python)
    except subprocess.CalledProcessError as error:
        print(
            f"cannot download a wheel: {(error.stderr.strip().splitlines() or ['pip printed no reason'])[-1]}",
            file=sys.stderr,
        )
        return 1
    size = file.stat().st_size
    print(
        f"{file}: {size / 2**20:.1f} MiB for Python {python}; on the GPU machine: tar xf, cd {NAME}, python3 -m "
        "benchmarks.gpu_check"
    )
    if size > MOST_BYTES:
        print(f"it is larger than {MOST_BYTES / 2**20:.0f} MiB", file=sys.stderr)
        return 1
    return 0


def python_version(asked: str) -> str | None:
    """Parse a version such as ``3.12`` from itself, ``python3.12`` or a path; the default without a minor version."""
    found = re.fullmatch(r"(?:python)?(3)(?:\.(\d+))?(?:\.\d+)?", asked.rpartition("/")[2])
    if found is None:
        return None
    return f"3.{found[2]}" if found[2] else DEFAULT_PYTHON


def write(file: Path, python: str) -> None:
    """Download the wheels and write the bundle.

    Raises:
        subprocess.CalledProcessError: pip could not download a wheel.
    """
    groups = groups_for(python)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(file, "w:gz", compresslevel=6) as bundle:
        for name, packages in groups.items():
            wheels = Path(folder, name)
            fetch(packages, python, wheels)
            for wheel in sorted(wheels.glob("*.whl")):
                _add_wheel(bundle, wheel, f"{NAME}/vendor/{name}")
        listed = json.dumps(groups, indent=1).encode()
        _add(bundle, f"{NAME}/vendor/groups.json", listed)
        for path in project_files(vendor.ROOT):
            _add_file(bundle, path)


def groups_for(python: str) -> dict[str, Mapping[str, str]]:
    """Return the packages of a bundle for a version of Python."""
    old = int(python.partition(".")[2]) < 11
    return {**vendor.GROUPS, **(vendor.OLD_PYTHON if old else {})}


def fetch(packages: Iterable[str], python: str, folder: Path) -> None:
    """Download wheels of the pinned versions, without their dependencies."""
    platforms = [part for name in _PLATFORMS for part in ("--platform", name)]
    subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps",
         "--only-binary=:all:", "--python-version", python, "--implementation", "cp", *platforms,
         "--constraint", str(vendor.ROOT / "constraints.txt"), "--dest", str(folder), *packages],
        check=True, capture_output=True, text=True,
    )  # fmt: skip


def project_files(root: Path) -> list[Path]:
    """Yield the project's files to include (links as links), without weights and files made by running it."""
    found = [root / name for name in _PROJECT if (root / name).is_file()]
    for name in _PROJECT:
        found += [path for path in sorted((root / name).rglob("*")) if path.is_symlink() or path.is_file()]
    return [path for path in found if _goes_along(path.relative_to(root))]


def _goes_along(path: Path) -> bool:
    # Files below a link are included through their own folder.
    linked = path.parts[0] == "specbench" and len(path.parts) > 2 and path.parts[1] in ("methods", "tasks")
    made = any(part in _LEFT_OUT or part.endswith(".egg-info") for part in path.parts)
    return not linked and not made and path.suffix not in (*_WEIGHTS, ".pyc")


def _add_wheel(bundle: tarfile.TarFile, wheel: Path, where: str) -> None:
    with zipfile.ZipFile(wheel) as packed:
        for name in sorted(packed.namelist()):
            if not name.endswith("/"):
                _add(bundle, f"{where}/{name}", packed.read(name))


def _add_file(bundle: tarfile.TarFile, path: Path) -> None:
    name = f"{NAME}/{path.relative_to(vendor.ROOT).as_posix()}"
    if path.is_symlink():
        entry = _entry(name)
        entry.type, entry.linkname = tarfile.SYMTYPE, str(path.readlink())
        bundle.addfile(entry)
    else:
        _add(bundle, name, path.read_bytes())


def _add(bundle: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = _entry(name)
    entry.size = len(content)
    bundle.addfile(entry, io.BytesIO(content))


def _entry(name: str) -> tarfile.TarInfo:
    """Clear owner and time, so that a bundle does not show who made it and when."""
    entry = tarfile.TarInfo(name)
    entry.mode = 0o644
    return entry


if __name__ == "__main__":
    sys.exit(main())
