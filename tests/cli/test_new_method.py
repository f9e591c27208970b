"""``specbench new-method``: what it writes works as it is, in a checkout and as a package, and destroys nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import asserting
from support.processes import install, python, visible
from support.wording import wording

ROOT = Path(__file__).parents[2]
NAME = "brand_new"
FOLDER = ["__init__.py", "method.toml", "decoder.py", "README.md"]
RUN = f"specbench run --method {NAME} --task humaneval --limit 8"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout as far as a method needs one, links included."""
    folder = tmp_path_factory.mktemp("clone")
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("specbench", "methods", "tasks", "tests/contract", "tests/small_data", "tests/support", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignore)
    (folder / "tests" / "methods").mkdir()
    alongside = (file for file in (ROOT / "tests").iterdir() if file.suffix in (".py", ".txt"))
    for name in ("pyproject.toml", *(f"tests/{file.name}" for file in alongside)):
        shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that is in no checkout."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(root: Path) -> list[str]:
    """Files below a folder, what Python caches left out."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc")


def passes_ruff(folder: Path, *paths: object) -> None:
    for command in (["check"], ["format", "--check"]):
        done = python("-m", "ruff", *command, "--no-cache", *paths, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_method_in_a_checkout(cli: Any, clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(files(clone))
    monkeypatch.chdir(clone / "tests")  # anywhere inside
    result = cli("new-method", NAME)
    assert (result.code, result.err) == (0, "")
    test = f"tests/methods/test_{NAME}.py"
    written = [*(f"methods/{NAME}/{file}" for file in FOLDER), test]
    assert set(files(clone)) - before == set(written)
    wrote, _, after = result.out.partition("\nNext\n")
    assert wrote.splitlines() == ["Wrote", *(f"  ../{name}" for name in written)]
    assert after.splitlines() == ["  cd ..", f"  python -m pytest {test} tests/contract -k {NAME}", f"  {RUN}"]

    passes_ruff(clone, f"methods/{NAME}", test)


@pytest.mark.slow  # they need a process that imports that checkout; below they run for a package
def test_the_tests_of_a_method_in_a_checkout(cli: Any, clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(clone)
    assert cli("new-method", "newer").code == 0
    contract = "tests/contract/test_methods.py"
    done = python("-m", "pytest", "-v", "tests/methods/test_newer.py", contract, "-k", "newer and not slow", cwd=clone)
    assert done.returncode == 0, done.stdout
    assert f"{contract}::test_card[newer] PASSED" in done.stdout


@pytest.fixture(scope="module")
def package(cli: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A package of its own, made where there is no checkout, and what the command said."""
    folder = tmp_path_factory.mktemp("elsewhere")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        return folder / "specbench-brand-new", cli("new-method", NAME)


@pytest.fixture(scope="module")
def installed(package: tuple[Path, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("packages") / "site"
    install(package[0], site)
    return site


def test_a_package_of_its_own(package: tuple[Path, Any]) -> None:
    root, result = package
    assert (result.code, result.err) == (0, "")
    name = f"specbench_{NAME}"
    written = ["pyproject.toml", *(f"{name}/{file}" for file in FOLDER), f"tests/test_{NAME}.py"]
    assert files(root.parent) == sorted(f"{root.name}/{name}" for name in written)
    wrote, _, after = result.out.partition("\nNext\n")
    assert wrote.splitlines() == ["Wrote", *(f"  {root.name}/{name}" for name in written)]
    commands = ["pip install pytest -e ./specbench-brand-new", "python -m pytest ./specbench-brand-new", RUN]
    assert after.splitlines() == [f"  {command}" for command in commands]
    passes_ruff(root)


def test_a_package_of_its_own_is_found_and_passes_its_tests(
    cli: Any, package: Any, installed: Path, elsewhere: Path
) -> None:
    with visible(installed):
        arguments = ["-q", "-p", "no:cacheprovider", str(package[0])]
        own = asserting.call(elsewhere / "output", lambda: pytest.main(arguments)).wait()
        assert own.code == 0, own.out
        rows = {row["method"]: row for row in json.loads(cli("list", "methods", "--json").out)}
        assert wording(cli("new-method", NAME, "--into", "other").error)
    assert rows[NAME]["from"] == "specbench-brand-new"
    assert list(rows[NAME]["options"]) == ["draft_length"]
    assert not Path("other").exists()


def test_into_makes_a_package_even_in_a_checkout(
    cli: Any, clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(clone)
    monkeypatch.chdir(clone)
    into = tmp_path / "a b" / "c"
    result = cli("new-method", "other", "--into", into, "--json")
    assert (result.code, result.err) == (0, "")
    answer = json.loads(result.out)
    assert sorted(answer["wrote"]) == [str(into / name) for name in files(into)]
    assert answer["method"] == "other"
    assert answer["next"][0] == f"pip install pytest -e '{into}/specbench-other'"
    assert files(clone) == before


def test_what_is_there_stays(cli: Any, elsewhere: Path) -> None:
    taken = elsewhere / "specbench-mine"
    for way in (taken.mkdir, lambda: taken.write_text("mine"), lambda: taken.symlink_to("nowhere")):
        way()
        before = files(elsewhere)
        error = cli.refused(2, "new-method", "mine")
        assert wording(error)
        assert files(elsewhere) == before
        taken.rmdir() if taken.is_dir() else taken.unlink()
