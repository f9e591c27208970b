"""The list of shipped weights, and the command that makes them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import load_file, save_file
from support.wording import wording

from benchmarks import evidence, weights
from specbench.cli.app import app
from specbench.common import registry
from specbench.training.training_plan import TrainPlan

ROOT = Path(__file__).parents[1]
PIECES = weights.read()


def options(command: str) -> dict[str, list[str]]:
    """Values of a command's flags, by flag."""
    words = shlex.split(command)
    found: dict[str, list[str]] = {}
    for at, word in enumerate(words):
        if word.startswith("--"):
            found.setdefault(word, []).append(words[at + 1])
    return found


def method_of(piece: weights.Piece) -> str:
    return piece.name.removeprefix("four-")  # trained for a comparison only


@pytest.mark.parametrize("piece", PIECES, ids=lambda piece: piece.name)
def test_a_piece_is_made_by_commands_that_run(piece: weights.Piece) -> None:
    for command in piece.commands:
        program, name, *rest = shlex.split(command)
        assert program == "specbench"
        typer.main.get_command(app).commands[name].make_context(name, rest)  # type: ignore[attr-defined]
    words = shlex.split(piece.commands[-1])
    method = method_of(piece)
    assert words[:3] == ["specbench", "train", method]
    of = options(piece.commands[-1])
    settings = dict(setting.split("=") for setting in of["--set"])
    recipe = registry.trainable(method).recipe()
    recipe.Options.model_validate(settings)
    TrainPlan(method=method, model=of["--model"][0], settings=of["--set"], held_out=int(of["--held-out"][0]))
    assert piece.made.startswith(of["--out"][0] + "/")
    assert (ROOT / piece.shipped).is_dir() or not piece.in_package


def made_otherwise(piece: weights.Piece, folder: Path) -> list[str]:
    """Options that a card has and the command of its piece has not; none of a card from before there was the list."""
    card = folder / "card.json"
    made = json.loads(card.read_text()) if card.exists() else {}
    if "curve" not in made:
        return []
    settings = dict(setting.split("=") for setting in options(piece.commands[-1])["--set"])
    recipe = registry.trainable(method_of(piece)).recipe()
    mine, theirs = (recipe.Options.model_validate(each).model_dump() for each in (settings, made["options"]))
    return [name for name in mine if mine[name] != theirs[name]]


@pytest.mark.parametrize("piece", PIECES, ids=lambda piece: piece.name)
def test_what_is_shipped_was_made_by_its_command(piece: weights.Piece, tmp_path: Path) -> None:
    assert made_otherwise(piece, ROOT / piece.shipped) == []
    settings = dict(setting.split("=") for setting in options(piece.commands[-1])["--set"])
    card = tmp_path / "card.json"
    card.write_text(json.dumps({"curve": [], "options": {**settings, "lr": 1.0}}))
    assert made_otherwise(piece, tmp_path) == ["lr"]


def test_it_ships_what_was_made_and_nothing_of_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    piece = PIECES[0]
    made, shipped = tmp_path / piece.made, tmp_path / piece.shipped
    made.mkdir(parents=True)
    shipped.mkdir(parents=True)
    (made / "card.json").write_text("new")
    (shipped / "old.safetensors").write_text("old")
    asked: list[tuple[str, float]] = []

    def train(one: weights.Piece, minutes: float) -> bool:
        asked.append((one.name, minutes))
        return True

    assert weights.main([piece.name, "--minutes", "5"], train, tmp_path) == 0
    assert (shipped / "old.safetensors").exists(), "it was not to be shipped"
    assert weights.main([piece.name, "--ship"], train, tmp_path) == 0
    assert [file.name for file in shipped.iterdir()] == ["card.json"]
    assert asked == [(piece.name, 5.0), (piece.name, weights.MINUTES)]
    assert wording(capsys.readouterr().out)


def test_a_head_is_shipped_with_its_card_in_files_that_a_repository_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "LARGEST", 5000)
    piece = next(piece for piece in PIECES if piece.name == "jetspec")
    made, shipped = tmp_path / piece.made, tmp_path / piece.shipped
    made.mkdir(parents=True)
    shipped.mkdir(parents=True)
    tensors = {name: torch.full((30, 30), float(at)) for at, name in enumerate("abc")}
    save_file(tensors, made / "model.safetensors")
    (made.parent / "card.json").write_text("{}")
    (shipped / "README.md").write_text("written by hand")
    weights.ship(piece, tmp_path)
    assert (shipped / "README.md").read_text() == "written by hand"
    assert (shipped / "card.json").read_text() == "{}"
    parts = [*shipped.glob("model-*.safetensors")]
    assert len(parts) == 3
    found = {name: value for part in parts for name, value in load_file(part).items()}
    assert all(torch.equal(found[name], value) for name, value in tensors.items())
    index = json.loads((shipped / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == tensors.keys()


def test_the_time_of_a_piece_is_that_of_all_its_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds: list[float] = []

    def ended(words: list[str], most: float) -> str | None:
        seconds.append(most)
        return None if len(seconds) == 2 else "{}"

    monkeypatch.setattr(weights, "command_ended", ended)
    piece = weights.Piece("x", ("specbench a", "specbench b", "specbench c"), "", "")
    assert not weights.train(piece, 2.0)
    assert len(seconds) == 2
    assert 100 < seconds[1] <= seconds[0] <= 120


def test_a_command_that_takes_too_long_is_ended_and_one_that_fails_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "_specbench", lambda: [sys.executable, "-c"])
    assert evidence.command_ended(["specbench", "print(7)"], 60) == "7\n"
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"  # as in the background
    assert evidence.command_ended(["specbench", deaf], 1) is None
    with pytest.raises(SystemExit, match="5"):
        evidence.command_ended(["specbench", "raise SystemExit(5)"], 60)


def test_a_sigterm_ends_the_command_that_is_waited_for_too(tmp_path: Path) -> None:
    there = tmp_path / "there"
    script = "import pathlib, sys, time; pathlib.Path(sys.argv[-2]).write_text(''); time.sleep(60)"
    code = (
        "import sys\nfrom benchmarks import evidence\nevidence._specbench = lambda: [sys.executable, '-c']\n"
        f"evidence.end_by_sigterm()\nevidence.command_ended(['specbench', {script!r}, {str(there)!r}], 60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, start_new_session=True) as process:
        for _ in range(600):
            if there.exists():
                break
            time.sleep(0.05)
        process.terminate()
        assert process.wait(20) == 143
    with pytest.raises(ProcessLookupError):  # no process of its session is left
        os.killpg(process.pid, 0)
