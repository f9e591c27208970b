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
    result = cli.ok(*asked, "--out", file)
    found = dict(line.split(maxsplit=1) for line in result.out.splitlines())
    assert list(found) == ["path", "format", "dtype", "sha256", "bytes", "fingerprint"]
    assert found["path"] == str(file)
    assert found["bytes"] == f"{file.stat().st_size:,}"
    assert wording(result.err)
    assert f"writing {file}" in result.err
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
    result = cli.ok("export-model", "mine/", "--to", "hf", "--json", "--quiet")
    figures = json.loads(result.out)
    assert figures["path"] == "exported/mine-float32"
    assert figures["format"] == "hf"
    found = load(figures["path"], device="cpu")
    assert found.spec.fingerprint == figures["fingerprint"] == load("mine/", device="cpu").spec.fingerprint
    assert wording(cli.refused(2, "export-model", "mine/", "--to", "hf"))


@pytest.mark.parametrize(
    "argv",
    [
        ("config:tiny",),
        ("config:tiny", "--to", "onnx"),
        ("config:tinny", "--to", "hf"),
        ("config:tiny", "--to", "hf", "--dtype", "int8"),
        ("config:tiny", "--to", "hf", "--dtype", "auto"),
        ("config:tiny", "--to", "hf", "--vocabulary", "placeholders"),
        ("config:tiny", "--to", "gguf", "--out", "there"),
    ],
)
def test_mistakes_are_found_before_a_model_is_loaded(
    cli: Any, argv: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").touch()
    result = cli("export-model", *argv)
    assert result.code == 2
    assert wording(result.error)
    assert "loading" not in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
