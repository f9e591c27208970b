"""A head of another package is two short files: what it needs besides, every head has."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support import decoders, processes, toy_head
from support.decoders import loaded
from support.models import attached, autoregressive, prompt, tiny_llama
from support.toy_head.head import ToyHead

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.common import Prompt, registry
from specbench.common.options import parse_options
from specbench.decoding import Method
from specbench.engine import Engine, Sampling, graphs
from specbench.planning.methods import plan_methods
from specbench.training import Job
from specbench.training.data.answers import Asking, ask
from specbench.training.recipe import Text

VOCAB, ANSWER = 97, 24
FOLDER = Path(toy_head.__file__).parent


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path) -> Iterator[None]:
    info = tmp_path / "site" / "toy_head-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-head\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[specbench.methods]\ntoy = support.toy_head\n")
    with processes.visible(tmp_path / "site"):
        yield
    shutil.rmtree(tmp_path / "site")


def method(engine: Engine, head: object, budget: int = 4) -> Method:
    found = plan_methods(["toy"], [f"toy.head={head}", f"toy.budget={budget}"])[-1]
    return found.ready(decoders.target(engine))


def test_it_takes_under_eighty_lines() -> None:
    lines = [line for file in FOLDER.glob("*.py") for line in file.read_text().splitlines() if line]
    assert 40 < len(lines) < 80


@pytest.mark.parametrize(
    ("sampling", "captured"),
    [(Sampling(), False), (Sampling(), True), (Sampling(1.0, seed=5), False)],
    ids=["greedy", "greedy-captured", "sampled"],
)
def test_its_output_is_the_targets(sampling: Sampling, captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)
    model = tiny_llama(VOCAB, num_hidden_layers=4).double()
    prompts = [prompt(length, VOCAB, length) for length in (1, 7, 19)]
    how = {"capacity": 60, "max_rows": 8, "sampling": sampling}
    with attached(model, slots=1, **how) as engine:
        truth = [autoregressive(engine, ids, 20) for ids in prompts]
    with attached(model, slots=3, graphs=captured, **how) as engine:
        ready = method(engine, "random")
        records = decoders.served(engine, ready, prompts, 20, together=3)
    assert ready.weights["head"] == "random"
    assert [record.output_ids for record in records] == truth
    assert all(record.draft_forwards for record in records)


def test_a_trained_head_drafts_as_much_as_was_counted(tmp_path: Path) -> None:
    target = tiny_llama(VOCAB, num_hidden_layers=4)
    asked = [Prompt(f"p{n}", bytes(1 + i % 90 for i in prompt(4, 90, n)).decode(), False) for n in range(3)]
    texts: list[Text] = ask(loaded(target), asked, Asking(ANSWER, 4), tmp_path / "answers")
    recipe = registry.trainable("toy").recipe()
    options = parse_options(
        recipe.Options, {"steps": "40", "batch": "3", "lr": "0.05", "bf16": "false", "keep_circles": "0"}, "toy"
    )
    card = recipe.train(options, Job(loaded(target), texts, texts, tmp_path, 0, lambda line: None))
    assert card["held_out_accepted_length"] > 1.3
    head = ToyHead.load(tmp_path / "head", dtype=torch.float32)
    with attached(target, capacity=60, max_rows=8) as engine:
        ready = method(engine, tmp_path / "head", budget=2)
        records = decoders.served(engine, ready, [text.prompt for text in texts], ANSWER)
    assert [record.output_ids for record in records] == [list(text.answer) for text in texts]
    counted = recipe.Lesson(head, target, depth=1).held_out(texts, torch.device("cpu"))
    assert sum(record.target_forwards for record in records) == counted.rounds
