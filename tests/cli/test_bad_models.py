"""Models of strangers through the command line: exit code, one line, nothing written, and in time."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import models

from specbench.cli.app import main
from specbench.models import chat

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.save(tmp_path_factory.mktemp("models") / "good", models.byte_tokenizer(template="{{ 1 }}"))


def _pickled(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def _nan(folder: Path) -> None:
    held = load_file(folder / WEIGHTS)
    held["model.norm.weight"][0] = float("nan")
    save_file(held, folder / WEIGHTS, metadata={"format": "pt"})


def _config(**values: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))

    return write


def _template(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "chat_template.jinja").write_text(text)

    return write


CASES: dict[str, tuple[Callable[[Path], None], int, str]] = {
    "pickled": (_pickled, 2, "its weights are pickled (pytorch_model.bin), and a pickle can run anything"),
    "nan": (_nan, 2, "model.norm.weight holds a number that is NaN or infinite"),
    "shape": (_config(hidden_size=96), 2, "its config.json makes it ["),
    "memory": (_config(vocab_size=10**12, hidden_size=10**3), 2, "its config.json makes it ["),
    "endless": (_template(ENDLESS), 2, "chat template of bad: it takes more than 1 seconds"),
    "letters": (_template("{{ 'a' * 10**10 }}"), 2, "chat template of bad: it takes more memory than a text needs"),
    "error": (_template("{{ 1 / 0 }}"), 2, "chat template of bad: division by zero"),
    "syntax": (_template("{% if %}"), 2, "chat template of bad: "),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_ends_with_one_line_and_writes_nothing(
    case: str, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chat, "SECONDS", 1)
    chat._running.clear()
    harm, code, says = CASES[case]
    folder = shutil.copytree(good, tmp_path / "bad")
    harm(folder)
    began = time.monotonic()
    what = ["--limit", "1", "--max-new-tokens", "4", "--no-score", "--out", str(tmp_path / "runs")]
    assert main(["run", "--model", str(folder), *what, "--method", "ar"]) == code
    chat._running.clear()
    errors = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("loading ")]
    assert len(errors) == 1
    assert errors[0].startswith("error: ")
    assert says in errors[0]
    assert not (tmp_path / "runs").exists()
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--device", "meta"), "unknown device 'meta'"),
        (("--device", "mps"), "unknown device 'mps'"),
        (("--device", ""), "unknown device ''"),
        (("--device", "cuda:99"), "use --device auto"),
        (("--dtype", "float8"), "unknown dtype 'float8'"),
    ],
)
def test_a_device_or_precision_that_cannot_be_is_refused(
    given: tuple[str, str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    what = ["--limit", "1", "--max-new-tokens", "4", "--no-score", "--out", str(tmp_path / "runs")]
    assert main(["run", "--model", "config:tiny", "--method", "ar", *what, *given]) in (2, 3)
    errors = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("loading ")]
    assert len(errors) == 1
    assert says in errors[0]
    assert not (tmp_path / "runs").exists()
