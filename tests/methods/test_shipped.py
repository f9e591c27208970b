"""Adapters and heads that come with an alias: small enough for a repository, and worth having on the real model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest

import specbench
from specbench.common.prompt import Prompt
from specbench.decoding.head_decoder import shipped_head
from specbench.decoding.protocol import Method
from specbench.models import CARD, names
from specbench.models.loaded_model import LoadedModel
from specbench.models.loader import load
from specbench.planning.methods import assign_labels, default_settings, make_methods, plan_methods
from specbench.runner.record import Request
from specbench.runner.session import Session
from specbench.runner.stop import StopRule

METHODS = Path(specbench.__file__ or "").parent / "methods"
ADAPTERS, HEADS = sorted(METHODS.glob("*/adapters/*")), sorted(METHODS.glob("*/heads/*"))
ALIASES = {names.resolve(name).location: (name, entry) for name, entry in names.aliases().items() if "adapter" in entry}
MEGABYTE = 1_000_000
QUESTIONS = (
    "Ann has 3 boxes with 4 pens each. She gives 5 pens away. How many are left?",
    "A train goes 60 miles an hour for 3 hours and then 40 miles an hour for 2 hours. How far does it go?",
    "Write a function to find the largest number of a list.",
)
by_method = pytest.mark.parametrize("folder", ADAPTERS, ids=lambda folder: folder.parts[-3])


def assert_small_and_explained(folder: Path, *words: str) -> None:
    sizes = [file.stat().st_size for file in folder.iterdir()]
    assert max(sizes) <= 10 * MEGABYTE
    assert sum(sizes) <= 26 * MEGABYTE
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert [word for word in words if word not in text] == []


def test_each_adapter_has_an_alias_and_each_alias_an_adapter() -> None:
    assert ADAPTERS
    assert {str(folder) for folder in ADAPTERS} == set(ALIASES)


@by_method
def test_an_adapters_card_says_what_it_is(folder: Path) -> None:
    assert_small_and_explained(folder, "gsm8k-train and mbpp-train", "tokens per forward", "correct answers")
    card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    _, alias = ALIASES[str(folder)]
    assert (card["method"], card["model"]) == (alias["method"], alias["base"])
    assert {"float32", "bfloat16"} <= card["base_fingerprints"].keys()
    assert card["after"]["tpf"] > card["before"]["tpf"]


@pytest.mark.parametrize("folder", HEADS, ids=lambda folder: f"{folder.parts[-3]}-{folder.name}")
def test_a_head_belongs_to_an_alias(folder: Path) -> None:
    assert_small_and_explained(folder, "gsm8k-train", "steps", "loss", "accepted length")
    assert folder.name in names.aliases()
    method = folder.parts[-3]
    assert shipped_head(method, folder.name) == folder
    decoder = import_module(f"specbench.methods.{method}.decoder")
    decoder.Decoder.check(decoder.Options(), folder.name)


@pytest.mark.slow  # it loads a model and decodes 300 tokens of it
@by_method
def test_an_adapter_saves_forwards_on_unseen_questions(folder: Path, smollm2: LoadedModel) -> None:
    name, alias = ALIASES[str(folder)]
    labels = assign_labels([alias["method"]])
    settings = default_settings(labels, {label: {} for label in labels}, alias["method"], alias.get("options", {}))
    _, method = make_methods(labels, settings)
    assert tokens_per_forward(load(name, device="cpu"), method) > tokens_per_forward(smollm2, method)


@pytest.mark.parametrize("name", sorted({folder.parts[-3] for folder in HEADS}))
def test_the_embedded_models_heads_save_forwards(name: str, smollm2: LoadedModel) -> None:
    _, method = plan_methods([name], [f"{name}.budget=8"])
    assert tokens_per_forward(smollm2, method, QUESTIONS[:1], 12) > 1.3


def tokens_per_forward(
    model: LoadedModel, method: Method, questions: Sequence[str] = QUESTIONS, tokens: int = 48
) -> float:
    rule = StopRule(model.stop_ids, (), tokens, model.decode)
    prompts = [model.encode(Prompt("own", question, True)) for question in questions]
    requests = [Request(str(number), 0, ids, rule) for number, ids in enumerate(prompts)]
    with Session(model, [method], capacity=max(map(len, prompts)) + 48) as session:
        records = list(session.decode(session.methods[0], requests))
    return sum(sum(record.accepted_lengths) for record in records) / sum(record.target_forwards for record in records)
