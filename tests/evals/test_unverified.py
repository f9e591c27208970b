"""Data files whose hash no task knows: which are taken, what is recorded of them, and the formats that they come in."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from pydantic import BaseModel, ConfigDict
from support.wording import wording

from specbench.common.errors import UsageError
from specbench.evals import data, rows

pyarrow = pytest.importorskip("pyarrow", reason="needs pip install 'specbench-llm[eval]'")
COMMIT = "c0ffee" + "0" * 34
ROWS: list[dict[str, Any]] = [{"a": 1, "b": ["x", "é"]}, {"a": 2, "b": []}, {"a": 3, "b": ["y"]}]


class Row(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    a: int


def parquet(found: list[dict[str, Any]]) -> bytes:
    import pyarrow.parquet

    buffer = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(found), buffer)
    return bytes(buffer.getvalue().to_pybytes())


def lines(found: list[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in found).encode()


FORMATS: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "x.jsonl": lines, "x.jsonl.gz": lambda found: gzip.compress(lines(found)),
    "x.json": lambda found: json.dumps(found).encode(), "x.parquet": parquet,
}  # fmt: skip


def entry(**changes: Any) -> data.DataFile:
    fields = {"name": "x.jsonl", "also": ["x.parquet"], "licence": "MIT", "source": "https://example.org"}
    return data.DataFile.model_validate(fields | changes)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(data.DATA_DIR, raising=False)


def written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("where", ["data_dir", "environment"])
def test_any_file_of_the_name_is_taken_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    folder = tmp_path if where == "data_dir" else None
    monkeypatch.setenv(data.DATA_DIR, "" if folder else str(tmp_path))
    second = written(tmp_path / "x.parquet", parquet(ROWS))
    with data.recording_files() as files:
        assert data.is_present(entry(), folder)
        assert data.resolve_file(entry(), folder) == second
        first = written(tmp_path / "x.jsonl", lines(ROWS))
        assert data.resolve_file(entry(), folder) == first
    assert [*files] == ["x.parquet", "x.jsonl"]
    for path in (first, second):
        found = files[path.name]
        assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert (found.bytes, found.revision, found.verified) == (path.stat().st_size, None, False)
    data.resolve_file(entry(), folder)
    assert len(files) == 2  # nothing is recorded after the end


def test_a_known_file_is_recorded_as_verified_and_another_is_not_taken(tmp_path: Path) -> None:
    content = lines(ROWS)
    file = entry(also=[], size=len(content), sha256=hashlib.sha256(content).hexdigest())
    written(tmp_path / "x.jsonl", content)
    with data.recording_files() as files:
        data.resolve_file(file, tmp_path)
    assert files["x.jsonl"].verified
    written(tmp_path / "x.jsonl", content + b"\n")
    with data.recording_files() as files, pytest.raises(UsageError, check=wording):
        data.resolve_file(file, tmp_path)
    assert not files


def test_a_file_that_the_user_named_is_recorded(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.jsonl", lines(ROWS))
    with data.recording_files() as files:
        assert data.user_file(path) == path
    assert [(file.name, file.verified) for file in files.values()] == [("mine.jsonl", False)]
    with pytest.raises(UsageError, check=wording):
        data.user_file(tmp_path / "none.jsonl")


@pytest.mark.parametrize("revision", [None, "1" * 40])
def test_the_hubs_commit_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, revision: str | None) -> None:
    asked = []

    def download(repo: str, path: str, **options: Any) -> str:
        asked.append((repo, path, options["revision"]))
        return str(written(tmp_path / "datasets--o--r" / "snapshots" / (options["revision"] or COMMIT) / path, b"{}\n"))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    hub = {"repo": "o/r", "path": "test/x.jsonl", **({"revision": revision} if revision else {})}
    with data.recording_files() as files:
        data.resolve_file(entry(hub=hub))
    assert asked == [("o/r", "test/x.jsonl", revision)]
    assert files["x.jsonl"].revision == (revision or COMMIT)


def test_a_file_beyond_the_bound_is_refused_before_it_is_read(tmp_path: Path) -> None:
    for name in ("x.jsonl", "x.parquet"):
        path = tmp_path / name
        with path.open("wb") as file:
            file.truncate(rows.LARGEST + 1)  # without a block of it on disk
        with pytest.raises(UsageError, check=wording):
            data.resolve_file(entry(name=name, also=[]), tmp_path)
    with pytest.raises(UsageError, check=wording):
        read(tmp_path / "x.parquet")


# ------------------------------------------------------------------------------------------------------------ formats


def read(path: Path) -> list[tuple[int, Row]]:
    return data.read_rows(path, Row)


@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_the_same_in_every_format(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, FORMATS[name](ROWS * 50))
    assert [row for _, row in rows.numbered(path)] == ROWS * 50
    assert [(number, row.a) for number, row in read(path)] == [(at + 1, at % 3 + 1) for at in range(150)]


@pytest.mark.parametrize("name", FORMATS)
def test_a_bad_row_is_named_by_its_number(tmp_path: Path, name: str) -> None:
    kinds: list[dict[str, object]] = [{"b": []}, {"a": "2"}, {"a": None}]
    for bad in kinds:
        columns = {"a": "0"} if bad.get("a") == "2" else {}
        first = {**ROWS[0], **columns}
        path = written(tmp_path / name, FORMATS[name]([first, bad] if not columns else [bad]))
        with pytest.raises(UsageError, check=wording) as error:
            read(path)
        assert "\n" not in str(error.value)
    path = written(tmp_path / name, FORMATS[name]([ROWS[0], ROWS[0]]))
    with pytest.raises(UsageError, check=wording):
        data.by_field(path, read(path), "a")


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_not_the_format_is_refused(tmp_path: Path, name: str) -> None:
    good = FORMATS[name]([{"a": at, "b": [str(at) * 40]} for at in range(500)])
    damage = [good[: len(good) // 2], good[:-9], b"\xff\xfe" * 40, good[:100] + bytes(300) + good[400:]]
    for at, content in enumerate(damage):
        path = written(tmp_path / f"{at}" / name, content)
        with pytest.raises(UsageError, check=wording) as error:
            read(path)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)


def test_parquet_that_unpacks_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "x.parquet", parquet([{"a": 1, "text": "x" * 1000}] * 10_000))
    assert path.stat().st_size < 50_000  # the text is stored once
    assert len(read(path)) == 10_000
    monkeypatch.setattr(rows, "_UNPACKED", 1 << 20)
    with pytest.raises(UsageError, check=wording):
        read(path)
