from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from support.asserting import data_folder
from support.wording import wording

from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.evals import data

CONTENT = b'{"a": 1}\n'


def entry(**changes: Any) -> data.DataFile:
    digest, source = hashlib.sha256(CONTENT).hexdigest(), "https://example.org/rows.jsonl"
    fields = {"name": "rows.jsonl", "size": len(CONTENT), "sha256": digest, "licence": "MIT", "source": source}
    return data.DataFile.model_validate(fields | changes)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(data.DATA_DIR, raising=False)


def folder(path: Path, content: bytes = CONTENT) -> Path:
    path.mkdir()
    (path / "rows.jsonl").write_bytes(content)
    return path


def human_eval() -> data.DataFile:
    file, *_ = data.manifest(Path(__file__).parents[2] / "tasks" / "humaneval" / "task.toml")
    return file


def test_sources_are_tried_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = folder(tmp_path / "hub") / "rows.jsonl"
    calls = []

    def download(repo: str, path: str, **options: Any) -> str:
        calls.append((repo, path, options))
        return str(fetched)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    package = folder(tmp_path / "site")
    distribution = type("Distribution", (), {"locate_file": lambda self, path: package / path})()
    monkeypatch.setattr(data.importlib.metadata, "distribution", lambda name: distribution)
    hub = {"repo": "o/r", "revision": "0" * 40, "path": "data/rows.jsonl"}
    file = entry(package={"distribution": "rows", "path": "rows.jsonl"}, hub=hub)
    environment, explicit = folder(tmp_path / "environment"), folder(tmp_path / "explicit")

    monkeypatch.setenv(data.DATA_DIR, str(environment))
    assert data.resolve_file(file, explicit) == explicit / "rows.jsonl"
    assert data.resolve_file(file) == environment / "rows.jsonl"
    (environment / "rows.jsonl").unlink()
    assert data.resolve_file(file) == package / "rows.jsonl"
    (package / "rows.jsonl").unlink()
    assert not calls
    assert data.resolve_file(file) == fetched
    assert calls == [("o/r", "data/rows.jsonl", {"repo_type": "dataset", "revision": "0" * 40})]


def test_an_explicit_folder_without_the_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(data.DATA_DIR, str(folder(tmp_path / "environment")))
    with pytest.raises(UsageError, match=r"rows\.jsonl") as error:
        data.resolve_file(entry(), tmp_path)
    assert str(tmp_path) in str(error.value)


def test_another_file_is_refused_with_both_hashes(tmp_path: Path) -> None:
    other = b'{"a": 2}\n'
    with pytest.raises(UsageError) as error:
        data.resolve_file(entry(), folder(tmp_path / "d", other))
    for part in (hashlib.sha256(CONTENT).hexdigest(), hashlib.sha256(other).hexdigest(), str(tmp_path / "d")):
        assert part in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, check=wording):
        data.resolve_file(entry(size=8), tmp_path / "d")


def test_nowhere_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    package = {"distribution": "no-such-distribution", "path": "rows.jsonl"}
    with pytest.raises(EnvironmentRefused, check=wording) as bare:
        data.resolve_file(entry(package=package))
    assert "hub" not in str(bare.value)

    def offline(*args: Any, **options: Any) -> str:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    hub = {"repo": "o/r", "revision": "0" * 40, "path": "rows.jsonl"}
    with pytest.raises(EnvironmentRefused, check=wording) as error:
        data.resolve_file(entry(package=package, hub=hub))
    assert "\n" not in str(error.value)


def test_human_eval_comes_from_its_package_and_is_the_same_in_the_data_folder() -> None:
    path = data.resolve_file(human_eval())
    assert path.parts[-3:] == ("human_eval", "data", "HumanEval.jsonl.gz")
    assert len(data.read_jsonl(path)) == 164
    folder = data_folder(human_eval().name)
    assert data.resolve_file(human_eval(), folder).parent == folder
