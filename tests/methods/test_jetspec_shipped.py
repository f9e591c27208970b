"""Heads that come with an alias: small enough to be in a repository, and worth having on the real model."""

from __future__ import annotations

import random
from pathlib import Path

import method_sets
import pytest
from models_tiny import attached, autoregressive

from specbench.common.prompt import Prompt
from specbench.decoding.protocol import Context
from specbench.methods import jetspec
from specbench.methods.jetspec.config import shipped
from specbench.methods.jetspec.decoder import Decoder, Options
from specbench.models import names
from specbench.models.loader import LoadedModel
from specbench.runner.loop import Request, Runner
from specbench.runner.stop import StopRule

HEADS = sorted(Path(jetspec.__file__ or "").parent.glob("heads/*"))
MEGABYTE = 1_000_000


@pytest.mark.parametrize("folder", HEADS, ids=lambda folder: folder.name)
def test_they_are_small_and_belong_to_an_alias(folder: Path) -> None:
    sizes = [file.stat().st_size for file in folder.iterdir()]
    assert max(sizes) <= 10 * MEGABYTE
    assert sum(sizes) <= 20 * MEGABYTE
    assert folder.name in names.aliases()
    assert shipped(folder.name) == folder
    Decoder.check(Options(), folder.name)
    card = (folder / "README.md").read_text(encoding="utf-8")
    for said in ("gsm8k-train", "steps", "loss", "accepted length"):
        assert said in card


@pytest.mark.slow  # of 30 forwards
def test_the_embedded_models_head_saves_forwards(smollm2: LoadedModel) -> None:
    prompt = Prompt("own", "Ann has 3 boxes with 4 pens each. She gives 5 pens away. How many are left?", True)
    ids = smollm2.encode(prompt)
    rule = StopRule(smollm2.stop_ids, (), 40, smollm2.decode)
    with attached(smollm2.model, capacity=len(ids) + 60, max_rows=16) as engine:
        answer = autoregressive(engine, ids, 40)
        where = str(shipped("smollm2-135m"))
        method = method_sets.ready(method_sets.with_options("jetspec", {"head": where, "budget": 16}), engine)
        runner = Runner(engine, lambda label, request: Context(smollm2.vocab_size, 0, random.Random(0)))
        (record,) = runner.segment(method, [Request("own", 0, ids, rule)])
    assert record.output_ids == answer[: len(record.output_ids)]
    assert sum(record.accepted_lengths) > 1.3 * record.target_forwards
