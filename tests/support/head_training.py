"""Trainings of draft heads and draft models on a tiny target's own answers, and what the engine accepts afterwards."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.decoders import ready, served, with_options
from support.models import attached, prompt

from specbench.common.prompt import Prompt
from specbench.models.loaded_model import LoadedModel
from specbench.training.data.answers import Asking, ask
from specbench.training.recipe import Job, Text

ANSWER = 24
QUICK: Mapping[str, Any] = {
    "batch": 3, "lr": 1e-2, "steps": 8, "bf16": False, "log_every": 1, "eval_every": 100, "save_every": 4,
    "keep_circles": 0,
}  # fmt: skip


def answers(target: LoadedModel, folder: Path, first: int = 1) -> list[Text]:
    """The target's own greedy answers to six prompts, whose bytes are ``first`` or more."""
    prompts = [Prompt(f"p{n}", bytes(first + i % 90 for i in prompt(4, 90, n)).decode(), False) for n in range(6)]
    return ask(target, prompts, Asking(ANSWER, 4), folder)


def train(recipe: str, job: Job, **options: Any) -> Mapping[str, Any]:
    """Train with a method's recipe; its module imports transformers' Trainer, PEFT and datasets."""
    module = importlib.import_module(f"specbench.methods.{recipe}.train")
    card: Mapping[str, Any] = module.train(module.Options(**{**QUICK, **options}), job)
    return card


def losses(lines: Sequence[str]) -> list[float]:
    return [float(line.split("loss ")[1].split()[0]) for line in lines if "loss" in line]


def rounds(method: str, model: Any, texts: Sequence[Text], **options: Any) -> int:
    """Target forwards of the engine for the prompts of texts, whose answers it must give."""
    with attached(model, capacity=60, max_rows=8) as engine:
        drafting = ready(with_options(method, options), engine)
        records = served(engine, drafting, [text.prompt for text in texts], ANSWER)
    assert [record.output_ids for record in records] == [list(text.answer) for text in texts]
    return sum(record.target_forwards for record in records)
