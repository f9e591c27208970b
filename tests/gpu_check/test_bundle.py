"""The bundle: what goes along, in which version, and when it is used."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks.gpu_check import bundle, vendor

WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")


@pytest.fixture
def unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle with wheels of our own in place of the registry's."""

    def fetch(packages: Iterable[str], python: str, folder: Path) -> None:
        folder.mkdir()
        for package in packages:
            with zipfile.ZipFile(folder / f"{package}-1-py3-none-any.whl", "w") as wheel:
                wheel.writestr(f"{package.replace('-', '_').lower()}/__init__.py", f"PYTHON = {python!r}\n")

    monkeypatch.setattr(bundle, "fetch", fetch)
    file = tmp_path / "bundle.tar.gz"
    bundle.write(file, "3.12")
    assert file.stat().st_size < bundle.MOST_BYTES
    with tarfile.open(file) as packed:
        owners = {(entry.uid, entry.gid, entry.uname, entry.mtime) for entry in packed}
        assert owners == {(0, 0, "", 0)}, "it tells nothing of who made it"
        packed.extractall(tmp_path, filter="data")
    return tmp_path / bundle.NAME


def test_the_project_goes_along_without_weights(unpacked: Path) -> None:
    files = [path for path in unpacked.rglob("*") if path.is_file()]
    assert [path for path in files if path.suffix in WEIGHTS] == []
    assert (unpacked / "specbench" / "methods").is_symlink()
    for name in ("Makefile", "specbench/methods/ar/decoder.py", "tests/conftest.py", "benchmarks/gpu_check/page.css"):
        assert (unpacked / name).is_file(), name
    assert not [path for path in files if "__pycache__" in path.parts]
    assert json.loads((unpacked / "vendor" / "groups.json").read_text()).keys() == vendor.GROUPS.keys()
    assert (unpacked / "vendor/pydantic/pydantic_core/__init__.py").read_text() == "PYTHON = '3.12'\n"


def test_unpacked_it_finds_itself_and_what_it_brings(unpacked: Path) -> None:
    code = "import benchmarks.gpu_check, sys, json; from benchmarks.gpu_check import vendor; import gguf, specbench\n"
    code += "print(json.dumps([gguf.__file__, specbench.__file__, vendor.paths()]))"
    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(unpacked)!r}); {code}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    gguf, specbench, paths = json.loads(found.stdout)
    assert gguf.startswith(str(unpacked / "vendor" / "gguf"))
    assert specbench.startswith(str(unpacked / "specbench"))
    assert paths == [str(unpacked), *(str(unpacked / "vendor" / name) for name in vendor.GROUPS)]


def test_a_group_is_used_as_one_and_only_where_the_machines_own_will_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "site"
    for name, version in (("alpha", "2.10.0"), ("beta", "1.0"), ("gamma", "3.1rc1")):
        info = place / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    folder = tmp_path / "vendor"
    folder.mkdir()
    groups = {
        "good": {"alpha": "2.9"},
        "old": {"alpha": "", "beta": "1.1"},
        "none": {"delta": ""},
        "rc": {"gamma": "3"},
    }
    (folder / "groups.json").write_text(json.dumps(groups))
    monkeypatch.setattr(sys, "path", [str(place)])
    assert vendor.use(folder) == ["old", "none"]
    assert sys.path == [str(folder / "old"), str(folder / "none"), str(place)]
    assert vendor.use(folder) == ["old", "none"], "a second time changes nothing"
    assert len(sys.path) == 3
