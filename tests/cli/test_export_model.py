"""``specbench export-model``: what is written and said, and mistakes that load nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from support.models import save, save_adapter
from support.wording import wording

from specbench.models.loader import load


def test_a_gguf_of_placeholders(cli: Any, tmp_path: Path) -> None:
    file = tmp_path / "new" / "tiny.gguf"
    asked = ("export-model", "config:tiny", "--to", "gguf", "--vocabulary", "placeholders")
    said = cli.ok(*asked, "--out", file)
    found = dict(line.split(maxsplit=1) for line in said.out.splitlines())
    assert list(found) == ["path", "format", "dtype", "sha256", "bytes", "fingerprint"]
    assert found["path"] == str(file)
    assert found["bytes"] == f"{file.stat().st_size:,}"
    assert wording(said.err)
    assert f"writing {file}" in said.err
    short = cli.ok(*asked, "--dtype", "bf16", "--out", tmp_path / "short.gguf", "--json", "--quiet")
    figures = json.loads(short.out)
    assert (figures["dtype"], figures["format"], figures["path"]) == ("bfloat16", "gguf", str(tmp_path / "short.gguf"))
    assert figures["fingerprint"] == load("config:tiny", dtype="bfloat16", device="cpu").spec.fingerprint
    assert figures["bytes"] == (tmp_path / "short.gguf").stat().st_size < file.stat().st_size
    assert short.err == ""
    kinds = {tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "short.gguf").tensors}
    assert kinds == {"BF16", "F32"}


def test_an_adapter_as_a_folder_under_the_usual_name(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_adapter(save(tmp_path / "base"), tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    said = cli.ok("export-model", "mine/", "--to", "hf", "--json", "--quiet")
    figures = json.loads(said.out)
    assert figures["path"] == "exported/mine-float32"
    assert figures["format"] == "hf"
    found = load(figures["path"], device="cpu")
    assert found.spec.fingerprint == figures["fingerprint"] == load("mine/", device="cpu").spec.fingerprint
    assert wording(cli.refused(2, "export-model", "mine/", "--to", "hf"))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("config:tiny",), "Missing option '--to'"),
        (("config:tiny", "--to", "onnx"), "unknown --to value 'onnx'; known: gguf, hf"),
        (("config:tinny", "--to", "hf"), "unknown config 'tinny'; did you mean tiny?"),
        (("config:tiny", "--to", "hf", "--dtype", "int8"), "unknown precision of an export 'int8'"),
        (("config:tiny", "--to", "hf", "--dtype", "auto"), "unknown precision of an export 'auto'"),
        (("config:tiny", "--to", "hf", "--vocabulary", "placeholders"), "--vocabulary goes with --to gguf"),
        (("config:tiny", "--to", "gguf", "--out", "there"), "there is there already; choose another --out"),
    ],
)
def test_mistakes_are_found_before_a_model_is_loaded(
    cli: Any, argv: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").touch()
    said = cli("export-model", *argv)
    assert said.code == 2
    assert words in said.error
    assert "loading" not in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_place_that_cannot_be_written_is_found_before_too(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = cli("export-model", "config:tiny", "--to", "hf", "--out", tmp_path / "file" / "sub")
    assert said.code == 3
    assert wording(said.error)
    assert "loading" not in said.err


def test_what_turns_out_later_leaves_nothing(cli: Any, tmp_path: Path) -> None:
    error = cli.refused(2, "export-model", "config:tiny", "--to", "gguf", "--out", tmp_path / "new" / "x.gguf")
    assert wording(error)
    assert not [*tmp_path.iterdir()]
