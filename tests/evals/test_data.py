from __future__ import annotations

import gzip
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
    assert data.resolve(file, explicit) == explicit / "rows.jsonl"
    assert data.resolve(file) == environment / "rows.jsonl"
    (environment / "rows.jsonl").unlink()
    assert data.resolve(file) == package / "rows.jsonl"
    (package / "rows.jsonl").unlink()
    assert not calls
    assert data.resolve(file) == fetched
    assert calls == [("o/r", "data/rows.jsonl", {"repo_type": "dataset", "revision": "0" * 40})]


def test_an_explicit_folder_without_the_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(data.DATA_DIR, str(folder(tmp_path / "environment")))
    with pytest.raises(UsageError, match=r"rows\.jsonl") as error:
        data.resolve(entry(), tmp_path)
    assert str(tmp_path) in str(error.value)


def test_another_file_is_refused_with_both_hashes(tmp_path: Path) -> None:
    other = b'{"a": 2}\n'
    with pytest.raises(UsageError) as error:
        data.resolve(entry(), folder(tmp_path / "d", other))
    for part in (hashlib.sha256(CONTENT).hexdigest(), hashlib.sha256(other).hexdigest(), str(tmp_path / "d")):
        assert part in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, check=wording):
        data.resolve(entry(size=8), tmp_path / "d")


def test_nowhere_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    package = {"distribution": "no-such-distribution", "path": "rows.jsonl"}
    with pytest.raises(EnvironmentRefused, check=wording) as bare:
        data.resolve(entry(package=package))
    assert "hub" not in str(bare.value)

    def offline(*args: Any, **options: Any) -> str:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    hub = {"repo": "o/r", "revision": "0" * 40, "path": "rows.jsonl"}
    with pytest.raises(EnvironmentRefused, check=wording) as error:
        data.resolve(entry(package=package, hub=hub))
    assert "\n" not in str(error.value)


def test_a_branch_is_no_revision() -> None:
    with pytest.raises(ValueError, check=wording):
        entry(hub={"repo": "o/r", "revision": "main", "path": "rows.jsonl"})


@pytest.mark.parametrize(
    "text",
    [
        "[[data]\n",
        '[[data]]\nname = "x"\n',
        '[[data]]\nname="x"\nsize=1\nlicence="MIT"\nsource="u"\n',
        f'[[data]]\nname="x"\nsha256="{"0" * 64}"\nlicence="MIT"\nsource="u"\n',
        '[[data]]\nname="x"\nlicence="MIT"\nsource="u"\nurl="https://x"\n',
        f'[[data]]\nname="x"\nsize=1\nsha256="{"0" * 64}"\nalso=["y"]\nlicence="MIT"\nsource="u"\n',
        f'[[data]]\nname="x"\nsize=1\nsha256="{"0" * 64}"\nlicence="MIT"\nsource="u"\nhub={{repo="a",path="b"}}\n',
        '[[data]]\nname="x"\nsize=1\nsha256="00"\nlicence="MIT"\nsource="u"\n',
        f'[[data]]\nname="x"\nsize=1\nsha256="{"0" * 64}"\nlicence="MIT"\nsource="u"\nhubb=1\n',
    ],
)
def test_a_bad_card_names_the_field(tmp_path: Path, text: str) -> None:
    card = tmp_path / "task.toml"
    card.write_text(text)
    with pytest.raises(UsageError, check=wording) as error:
        data.manifest(card)
    assert str(card) in str(error.value)


def test_human_eval_comes_from_its_package_and_is_the_same_in_the_data_folder() -> None:
    path = data.resolve(human_eval())
    assert path.parts[-3:] == ("human_eval", "data", "HumanEval.jsonl.gz")
    assert len(data.read_jsonl(path)) == 164
    folder = data_folder(human_eval().name)
    assert data.resolve(human_eval(), folder).parent == folder


def test_jsonl_plain_and_compressed(tmp_path: Path) -> None:
    text = '{"a": "é"}\n\n{"a": 2}'
    plain, packed = tmp_path / "x.jsonl", tmp_path / "x.jsonl.gz"
    plain.write_text(text, encoding="utf-8")
    packed.write_bytes(gzip.compress(text.encode()))
    assert data.read_jsonl(plain) == data.read_jsonl(packed) == [{"a": "é"}, {"a": 2}]


ROWS = b"".join(
    b'{"row": %d, "text": "%s"}\n' % (i, hashlib.sha256(b"%d" % i).hexdigest().encode()) for i in range(2000)
)
PACKED = gzip.compress(ROWS)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b'{"a": 1}\n{"a": \n', r"line 2 is damaged \(not JSON: "),
        ("x.jsonl", b'{"a": 1}\n[1]\n', r"line 2 is damaged \(not a JSON object\)"),
        ("x.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', r"line 2 is damaged \(not JSON: invalid unicode"),
        ("x.jsonl.gz", PACKED[: len(PACKED) // 2], r"truncated after line \d+"),
        ("x.jsonl.gz", ROWS, "cannot be read"),
        ("x.jsonl.gz", PACKED[:200] + bytes(200) + PACKED[400:], "cannot be read|not JSON"),
        ("x.jsonl.gz", b"", None),
    ],
)
def test_damage_is_named(tmp_path: Path, name: str, content: bytes, message: str | None) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    if message is None:
        assert data.read_jsonl(path) == []
        path, message = tmp_path / "none.jsonl", r"none\.jsonl"
    with pytest.raises(UsageError, check=wording) as error:
        data.read_jsonl(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
