"""Adapters that come with an alias: small enough to be in a repository, and worth having on the real model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import specbench
from specbench.common.prompt import Prompt
from specbench.decoding.protocol import Method
from specbench.models import names
from specbench.models.adapters import CARD
from specbench.models.loader import LoadedModel, load
from specbench.runner.loop import Request
from specbench.runner.methods import default_settings, plan_methods
from specbench.runner.session import Session
from specbench.runner.stop import StopRule

FOLDERS = sorted(Path(specbench.__file__ or "").parent.glob("methods/*/adapters/*"))
ALIASES = {names.resolve(name).location: (name, entry) for name, entry in names.aliases().items() if "adapter" in entry}
MEGABYTE = 1_000_000
QUESTIONS = (
    "Ann has 3 boxes with 4 pens each. She gives 5 pens away. How many are left?",
    "A train goes 60 miles an hour for 3 hours and then 40 miles an hour for 2 hours. How far does it go?",
    "Write a function to find the largest number of a list.",
)


def test_each_has_an_alias_and_each_alias_an_adapter() -> None:
    assert FOLDERS
    assert {str(folder) for folder in FOLDERS} == set(ALIASES)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parts[-3])
def test_it_is_small_and_its_card_says_what_it_is(folder: Path) -> None:
    sizes = [file.stat().st_size for file in folder.iterdir()]
    assert max(sizes) <= 10 * MEGABYTE
    assert sum(sizes) <= 20 * MEGABYTE
    card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    _, alias = ALIASES[str(folder)]
    assert (card["method"], card["model"]) == (alias["method"], alias["base"])
    assert {"float32", "bfloat16"} <= card["base_fingerprints"].keys()
    assert card["after"]["tpf"] > card["before"]["tpf"]
    text = (folder / "README.md").read_text(encoding="utf-8")
    for said in ("gsm8k-train and mbpp-train", "of their tokens", "tokens per forward", "right answers"):
        assert said in text


@pytest.mark.slow  # it loads a model and decodes 300 tokens of it
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parts[-3])
def test_it_saves_forwards_on_questions_that_nobody_has_trained_on(folder: Path, smollm2: LoadedModel) -> None:
    name, alias = ALIASES[str(folder)]
    settings = default_settings(["ar", alias["method"]], [], alias["method"], alias.get("options", {}))
    _, method = plan_methods(["ar", alias["method"]], settings)
    assert tokens_per_forward(load(name, device="cpu"), method) > tokens_per_forward(smollm2, method)


def tokens_per_forward(model: LoadedModel, method: Method) -> float:
    rule = StopRule(model.stop_ids, (), 48, model.decode)
    prompts = [model.encode(Prompt("own", question, True)) for question in QUESTIONS]
    requests = [Request(str(number), 0, ids, rule) for number, ids in enumerate(prompts)]
    with Session(model, [method], capacity=max(map(len, prompts)) + 48) as session:
        records = list(session.decode(session.methods[0], requests))
    return sum(sum(record.accepted_lengths) for record in records) / sum(record.target_forwards for record in records)
