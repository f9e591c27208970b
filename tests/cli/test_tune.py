"""``specbench sweep --tune``: a recommendation with its evidence, and the lists of what methods have tuned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.wording import wording

from specbench.analysis.stats import Interval, verdict
from specbench.common import registry
from specbench.common.options import option_names
from specbench.planning.methods import make_method
from specbench.report.tables.sweep import sweep_advice

RUN = {
    "task": {"name": "humaneval"},
    "model": {"name": "toy", "dtype": "float32"},
    "environment": {"device": {"name": "cpu"}},
}
CURVE = [(1, 1.0), (2, 1.05), (4, 1.2)]
TUNED = {name: card for name, card in registry.methods().items() if "tune" in card.info}


def test_every_method_that_drafts_has_a_list() -> None:
    assert set(TUNED) == {name for name, card in registry.methods().items() if card.info["lossless"]} - {"ar"}


@pytest.mark.parametrize("name", TUNED)
def test_a_list_holds_the_default_and_nothing_that_cannot_run(name: str) -> None:
    card = TUNED[name]
    options = card.load().Options
    known, usual = option_names(options), options().model_dump()
    for option, values in card.info["tune"].items():
        assert known[option] == option  # long names
        assert usual[option] in values
        for value in values:
            assert make_method(name, name, {option: value}).max_rows <= 512  # those that are captured on a GPU


def rows(*changes: dict[str, Any]) -> pd.DataFrame:
    usual = {
        "label": "jf n=8", "method": "jf", "concurrency": 1, "set": "tuning", "prompts": 8, "tokens_per_forward": 1.5,
        "rows_per_step": 9.0, "speedup": 1.3, "speedup_low": 1.2, "speedup_high": 1.4, "best": False,
        "within_noise": False, "stopped": "", "chosen_low": 1.1, "chosen_high": 1.5, "blocks": 8.0,
    }  # fmt: skip
    made = [{**usual, **change} for change in changes]
    for row in made:
        known = row["speedup_low"] == row["speedup_low"]
        row["verdict"] = verdict(Interval(row["speedup_low"], row["speedup_high"], 0.95) if known else None)
    return pd.DataFrame(made)


def test_the_held_out_prompts_judge() -> None:
    found = rows(
        {"best": True, "within_noise": True},
        {"label": "jf n=16", "speedup": 1.2, "within_noise": True},
        {"label": "jf n=64", "speedup": 0.5},
        {"label": "jf n=128", "speedup": 0.3, "stopped": "halved"},
        {"set": "held-out", "speedup": 1.1, "speedup_low": 1.01, "speedup_high": 1.2, "prompts": 5},
    )
    reported = sweep_advice(RUN, found, CURVE, "jf")
    assert reported["faster"]
    assert reported["set"] == ["jf.n=8"]
    assert reported["free_rows"] == 2
    text = " ".join(reported["sentences"])
    assert wording(text)


@pytest.mark.parametrize("low", [0.99, float("nan")], ids=["not shown", "too few"])
def test_nothing_is_recommended_that_is_not_shown_to_be_faster(low: float) -> None:
    found = rows({"best": True}, {"set": "held-out", "speedup": 1.2, "speedup_low": low, "speedup_high": 1.4})
    reported = sweep_advice(RUN, found, CURVE, "jf")
    assert not reported["faster"]
    assert wording(reported["sentences"][-1])


def test_a_method_is_tuned(cli: Any, tmp_path: Path) -> None:
    result = cli.ok(
        "sweep", "--tune", "--method", "jacobi", "--model", "config:tiny", "--limit", 4, "--held-out", 2,
        "--max-new-tokens", 8, "--set", "jacobi.init=pad", "--out", tmp_path, "--json",
    )  # fmt: skip
    reported = json.loads(result.out)
    assert reported["set"][0].startswith("jacobi.block_size=")
    (folder,) = tmp_path.iterdir()
    cells = pd.read_csv(folder / "cells.csv")
    assert sorted(cells[cells["set"] == "tuning"]["block_size"].dropna().unique()) == [4, 8, 16, 32]
    judged = cells[cells["set"] == "held-out"]
    assert set(judged["method"]) == {"ar", "jacobi"}
    assert judged["prompts"].tolist() == [2, 2]


def test_what_the_user_sets_is_not_tried_and_one_method_at_a_time(cli: Any, tmp_path: Path) -> None:
    fixed = ("--method", "jacobi", "--model", "config:tiny", "--set", "jacobi.n=4", "--out", tmp_path)
    assert wording(cli.refused(2, "sweep", "--tune", *fixed))
    warm = ("--method", "recycling", "--model", "config:tiny", "--set", "recycling.warm=true", "--out", tmp_path)
    result = cli("sweep", "--tune", *warm)
    assert (result.code, result.err.count("\n"), result.out) == (2, 1, ""), "before a model is loaded"
    assert wording(result.error)
    assert [*tmp_path.iterdir()] == []
    assert wording(cli.refused(2, "sweep", "--tune", "--method", "jf,msn"))
