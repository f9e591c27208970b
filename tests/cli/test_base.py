"""A fine-tuned model next to the one that it was made from: a second AR row, other weights, the same prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import runs
from support.models import save, save_adapter

from specbench.models.loader import load
from specbench.results.schema import BASE

SHORT = ("--task", "humaneval", "--limit", 6, "--max-new-tokens", 8, "--no-score")


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    base = save(folder / "base")
    save_adapter(base, folder / "tuned")
    return folder / "tuned"


@pytest.fixture(scope="module")
def run(cli: Any, adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    out = tmp_path_factory.mktemp("runs")
    result = cli.ok("run", "--model", adapter, "--method", "jacobi", *SHORT, "--out", out, columns=140)
    (folder,) = out.iterdir()
    return result, folder


def test_both_are_decoded_and_each_row_is_held_against_both(run: tuple[Any, Path], adapter: Path) -> None:
    _, folder = run
    content = runs.config_on_disk(folder)
    rows = runs.rows_on_disk(folder)
    assert list(rows) == ["ar", BASE, "jacobi"]
    assert (content["model"]["name"], content["base"]["name"]) == ("tuned", "base")
    assert content["base"]["fingerprint"] == load(str(adapter.parent / "base")).spec.fingerprint
    assert {row["requests"] for row in rows.values()} == {6}
    assert rows["jacobi"]["over_base"]["speedup"]["value"] == pytest.approx(
        rows["jacobi"]["decode_tok_s"] / rows[BASE]["decode_tok_s"]
    )
    assert rows[BASE]["over_base"] is None
    assert rows[BASE]["again"] is None, "it is no second row of ar: its weights are others"


def test_the_base_answers_as_alone_and_that_is_no_loss(run: Any, cli: Any, adapter: Path, tmp_path: Path) -> None:
    _, folder = run
    records = runs.requests_on_disk(folder)
    mine = {record["prompt_id"]: record["output_ids"] for record in records if record["method"] == BASE}
    tuned = {record["prompt_id"]: record["output_ids"] for record in records if record["method"] == "ar"}
    alone = cli.made(tmp_path, "run", "--model", adapter.parent / "base", "--method", "ar", *SHORT)
    lines = runs.requests_on_disk(alone)
    assert mine == {record["prompt_id"]: record["output_ids"] for record in lines}
    assert mine != tuned
    rows = runs.rows_on_disk(folder)
    assert rows[BASE]["lossless"] is None
    assert rows["jacobi"]["lossless"]["verdict"] == "exact"
    # What an answer is to the base, anyone who wrote it: its own ones are as likely in a run without the other.
    likely = {label: row["text"]["log_likelihood_per_token"] for label, row in rows.items()}
    assert likely[BASE] == pytest.approx(runs.rows_on_disk(alone)["ar"]["text"]["log_likelihood_per_token"], abs=1e-5)
    assert likely["ar"] == likely["jacobi"] < likely[BASE] < 0
    assert rows[BASE]["text"]["agreement"] is None
    assert rows["ar"]["text"]["agreement"] == rows["jacobi"]["text"]["agreement"] < 1
    texts = {(record["prompt_id"], *record["output_ids"]) for record in records}
    assert len((folder / "likelihoods.jsonl").read_text().splitlines()) == len(texts) < len(records)


def test_a_model_of_other_tokens_was_not_what_it_was_made_from(cli: Any, adapter: Path, tmp_path: Path) -> None:
    result = cli("run", "--model", adapter, "--base", "config:tiny", *SHORT, "--out", tmp_path)
    assert result.code == 2
    assert result.error.endswith(f"other tokens than {adapter}, so it was not made from it; use --base none")
    assert not any(tmp_path.iterdir())
