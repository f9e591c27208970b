"""Copies that runs use: made once, found again, made anew when damaged; one for each model, format and precision."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import asserting
from support.models import FAMILIES, loaded, tiny

from specbench.models.export import copies
from specbench.models.export.copies import RECORD, exported
from specbench.models.export.exported import digest_of, sha256_of
from specbench.models.loaded_model import LoadedModel


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "specbench" / "exports"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The copies that are written, in their order."""
    written: list[str] = []
    for name in ("export_gguf", "export_hf"):
        own = getattr(copies, name)

        def counted(model: LoadedModel, path: Path, own: Any = own, **how: Any) -> Any:
            written.append(path.name)
            return own(model, path, **how)

        monkeypatch.setattr(copies, name, counted)
    return written


@pytest.fixture
def model() -> LoadedModel:
    return tiny(FAMILIES["llama"])


@pytest.mark.parametrize(("kind", "name"), [("gguf", "weights.gguf"), ("hf", "checkpoint")])
def test_a_copy_is_made_once(kind: Any, name: str, model: LoadedModel, cache: Path, made: list[str]) -> None:
    found = exported(model, kind, "float32")
    assert exported(model, kind, "fp32") == found == exported(tiny(FAMILIES["llama"], name="other"), kind, "float32")
    assert made == [name]
    (folder,) = cache.iterdir()
    assert found.path == folder / name
    assert (found.format, found.dtype, found.fingerprint) == (kind, "float32", model.spec.fingerprint)
    weights = found.path if kind == "gguf" else found.path / "model.safetensors"
    sums = sha256_of(weights)
    assert found.sha256 == (sums if kind == "gguf" else digest_of({"model.safetensors": sums}))
    assert found.bytes == weights.stat().st_size
    os.utime(weights)  # of another time, and the same
    assert exported(model, kind, "float32") == found
    assert len(made) == 1


def test_what_a_killed_process_left_is_removed(model: LoadedModel, cache: Path) -> None:
    left = cache / ".gguf-float32-0.123.tmp"
    left.mkdir(parents=True)
    (left / "weights.gguf").touch()
    found = exported(model, "gguf", "float32")
    assert [*cache.iterdir()] == [found.path.parent]


def test_what_makes_another_model_makes_another_copy(model: LoadedModel, cache: Path, made: list[str]) -> None:
    first = exported(model, "gguf", "float32")
    slower = tiny(FAMILIES["llama"])
    slower.model.config.rope_parameters = {**slower.model.config.rope_parameters, "rope_theta": 78.0}
    assert slower.spec.fingerprint == model.spec.fingerprint
    moved = tiny(FAMILIES["llama"])
    with torch.no_grad():
        moved.model.lm_head.weight *= 2
    asked = [(slower, "gguf", "float32"), (loaded(moved.model), "gguf", "float32"), (model, "gguf", "bfloat16")]
    asked += [(model, "hf", "float32"), (replace(model, stop_ids=frozenset({3})), "hf", "float32")]
    others = [exported(*each) for each in asked]  # type: ignore[arg-type]
    assert len({each.path for each in (first, *others)}) == len(made) == len([*cache.iterdir()]) == 6


@pytest.mark.parametrize("fault", ["weights", "shorter", "gone", "record", "no record", "another file"])
def test_a_damaged_copy_is_made_again(fault: str, model: LoadedModel, made: list[str]) -> None:
    kind: Any = "hf" if fault == "another file" else "gguf"
    found = exported(model, kind, "float32")
    file, record = found.path, found.path.parent / RECORD
    if fault == "weights":
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif fault == "shorter":
        file.write_bytes(file.read_bytes()[:-32])
    elif fault == "gone":
        file.unlink()
    elif fault == "record":
        record.write_text("{")
    elif fault == "no record":
        record.unlink()
    else:
        (file / "config.json").write_text("{}")
    again = exported(model, kind, "float32")
    assert again == found
    if kind == "gguf":
        assert sha256_of(file) == found.sha256
    else:
        assert json.loads((file / "config.json").read_text())["model_type"] == "llama"
    assert len(made) == 2


def test_two_processes_make_one_copy(model: LoadedModel, cache: Path, tmp_path: Path) -> None:
    def make() -> int:
        found = exported(model, "gguf", "float32")
        return 0 if sha256_of(found.path) == found.sha256 else 1

    both = [asserting.call(tmp_path / f"process-{number}", make) for number in range(2)]
    for process in both:
        assert process.wait().code == 0, process.err
    (folder,) = cache.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [RECORD, "weights.gguf"]
