"""``sweep --train`` on dummy weights: its trainings, its table and picture, and a second call that trains nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.wording import wording

from specbench.common.errors import UsageError

SMALL = ("--train-set", "steps=2", "--train-set", "bf16=false", "--train-held-out", 1, "--train-tokens", 8)
SWEPT = ("--task", "prompts", "--limit", 3, "--max-new-tokens", 6)


def sweep(cli: Any, prompts: Path, at: Path, train: str, *more: Any, columns: int = 140) -> Any:
    places = ("--data-file", prompts, "--train-prompts", prompts, "--out", at / "results", "--trained", at / "trained")
    base = ("sweep", "--model", "config:tiny", "--train", train, *SMALL, *SWEPT)
    return cli.ok(*base, *places, *more, columns=columns)


@pytest.mark.slow
def test_from_prompts_to_a_picture(cli: Any, prompts: Path, tmp_path: Path) -> None:
    grid = ("--grid", "draft_length=2", "--train-grid", "noise_length=1", "--train-grid", "texts=2,3")
    sweep(cli, prompts, tmp_path, "msn", *grid, "--max-hours", 1)
    (folder,) = (tmp_path / "results").iterdir()
    found = pd.read_csv(folder / "trainings.csv")
    rows = found[found["method"] == "msn"]
    assert list(rows["training"]) == ["untrained", "noise_length=1 texts=2", "noise_length=1 texts=3"]
    assert list(rows["train.texts"].dropna()) == [2, 3]
    assert list(rows["tokens_seen"] > 0) == [False, True, True]
    assert list(rows["flops"] > 0) == [False, True, True]
    assert (folder / "training-cost.png").stat().st_size > 10_000
    trained = sorted(path.name for path in (tmp_path / "trained").glob("noise*"))
    card = json.loads((tmp_path / "trained" / trained[0] / "card.json").read_text())
    assert (card["texts"], card["cost"]["device"]) == (2, "cpu")
    shown = cli.ok("show", folder, columns=80).out
    assert max(map(len, shown.split("\ntrainings: ")[0].splitlines())) <= 80
    again = sweep(cli, prompts, tmp_path, "msn", *grid)
    assert "step 1/2" not in again.err
    assert again.err.count(" done") >= 2


def test_trainings_are_of_the_model_that_is_swept(cli: Any, prompts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []

    def cells(base: Any, say: Any) -> Any:
        found.append(base)
        raise UsageError("seen")

    monkeypatch.setattr("specbench.training.training_grid.Cells", cells)
    reported = ("--model", "some/model", "--revision", "abc", "--trust-remote-code", "--dtype", "bfloat16", "--seed", 3)
    assert cli("sweep", "--train", "msn", "--train-prompts", prompts, *reported).error == "error: seen"
    (base,) = found
    assert (base.model, base.revision, base.trust_remote_code, base.dtype, base.seed) == (
        "some/model", "abc", True, "bfloat16", 3,
    )  # fmt: skip


@pytest.mark.parametrize(
    "argv",
    [
        ("--train-grid", "texts=2"),
        ("--train-grid", "texts=2", "--dry-run"),
        ("--train", "msn", "--train-grid", "texts=2"),
        ("--train", "jacobi", "--train-grid", "texts=2"),
        ("--train", "msn", "--train-prompts", "gsm8k-train", "--train-grid", "txts=2"),
        ("--train", "msn", "--train-prompts", "gsm8k-train", "--train-grid", "texts=0"),
        ("--train", "msn", "--train-prompts", "gsm8k-train", "--train-grid", "noise_length=x"),
    ],
)
def test_what_is_wrong_is_said_before_a_model_is_loaded(cli: Any, argv: tuple[str, ...]) -> None:
    result = cli("sweep", "--model", "config:tiny", "--grid", "draft_length=2", *argv)
    assert result.code == 2
    assert wording(result.error)
    assert "loading" not in result.err
