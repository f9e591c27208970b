"""Cost of a training: operations against a count by hand, and sums that go on where a training was interrupted."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support.decoders import loaded
from torch import Tensor, nn

from specbench.training.loop.cost import Meter, peak_memory_bytes
from specbench.training.loop.trainer import Course, Done, fit
from specbench.training.recipe import Job, LoopOptions

IN, OUT = 8, 4


@dataclass(frozen=True)
class _Text:
    answer: Sequence[int]


class _Lesson(nn.Module):
    """One product over the rows of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(IN, OUT, bias=False)

    def forward(self, rows: Tensor) -> dict[str, Tensor]:
        return {"loss": self.layer(rows).pow(2).mean()}


class Cut(Exception):
    """The process ends here."""


def learn(out: Path, tiny: Any, say: Callable[[str], None] = lambda line: None, lesson: Any = None) -> Done:
    texts = [_Text([0] * length) for length in (3, 5, 4, 6)]
    course = Course(
        lesson or _Lesson(),
        texts,
        lambda visit, met: {"rows": torch.ones(sum(2 * len(text.answer) for text in met), IN)},
        lambda text: 2 * len(text.answer),
    )
    options = LoopOptions(steps=5, batch=2, log_every=1, save_every=1, bf16=False)
    return fit(course, options, Job(tiny, texts, [], out, 0, say))


@pytest.fixture(scope="module")
def tiny() -> Any:
    from support.models import tiny_llama

    return loaded(tiny_llama(50))


def test_operations_are_those_of_the_products_forward_and_back(tiny: Any, tmp_path: Path) -> None:
    cost = learn(tmp_path, tiny).cost
    seen = 2 * (3 + 5 + 4 + 6) * 2  # two visits; the fifth step is of a third
    assert seen < cost.tokens_seen <= seen + 2 * (5 + 6)
    # A row is multiplied once forward and once for the gradient of the weights; its own gradient is not computed.
    assert cost.flops == pytest.approx(cost.tokens_seen * 2 * (2 * IN * OUT))
    assert cost.hours > 0
    assert (cost.energy_j, cost.processes, cost.device) == (None, 1, "cpu")
    assert cost.peak_memory_bytes is not None
    assert 50e6 < cost.peak_memory_bytes <= peak_memory_bytes(torch.device("cpu"))


class _GroupedAttention(nn.Module):
    """Two query heads of size ``IN`` that share keys and values, over the rows of a batch as one text."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.ones(IN))
        self.rows: list[int] = []

    def forward(self, rows: Tensor) -> dict[str, Tensor]:
        self.rows.append(len(rows))
        query, shared = (rows * self.query).expand(1, 2, -1, -1), rows[None, None]
        mixed = nn.functional.scaled_dot_product_attention(query, shared, shared, enable_gqa=True)
        return {"loss": mixed.pow(2).mean()}


def test_products_of_attention_are_counted(tiny: Any, tmp_path: Path) -> None:
    """Also with shared keys, which the formulas of torch before 2.13 for CUDA kernels refuse."""
    lesson = _GroupedAttention()
    cost = learn(tmp_path, tiny, lesson=lesson).cost
    # Forward: scores, mixed values. Back: gradients of the softmax and of the queries. Two heads; all rows of a step.
    assert cost.flops == pytest.approx(cost.tokens_seen * 4 * 2 * 2 * IN * lesson.rows[0])


def test_an_interrupted_training_has_cost_what_both_parts_did(tiny: Any, tmp_path: Path) -> None:
    def cut(line: str) -> None:
        if line.startswith("step 4/"):
            raise Cut

    whole = learn(tmp_path / "whole", tiny).cost
    with pytest.raises(Cut):
        learn(tmp_path / "parts", tiny, cut)
    state = tmp_path / "parts" / "checkpoints" / "checkpoint-3" / "trainer_state.json"
    kept = json.loads(state.read_text())
    spent = kept["stateful_callbacks"]["Meter"]["attributes"]["spent"]
    spent["seconds"] += 7200
    state.write_text(json.dumps(kept))
    parts = learn(tmp_path / "parts", tiny).cost
    assert (parts.tokens_seen, parts.flops) == (whole.tokens_seen, whole.flops)
    assert 2 < parts.hours < 2.1


def test_operations_of_several_processes_are_those_of_all() -> None:
    lesson = _Lesson()
    meter = Meter(lesson, processes=3)
    with meter.counting(0):
        lesson(torch.ones(4, IN))["loss"].backward()
    with meter.counting(1):  # another step's are not counted
        lesson(torch.ones(4, IN))["loss"].backward()
    cost = meter.cost(2, lambda steps: 12 * steps)
    assert (cost.tokens_seen, cost.processes) == (24, 3)
    assert cost.flops == pytest.approx(24 * 2 * (2 * IN * OUT))


def test_energy_is_that_of_the_steps() -> None:
    read = iter([1_000, 3_000, 10_000, 10_500])

    class Gpu:
        def look(self) -> Any:
            return type("Snapshot", (), {"energy_mj": next(read)})()

    meter = Meter(_Lesson(), gpu=lambda device: Gpu())  # type: ignore[arg-type,return-value]
    for _ in range(2):
        meter.on_step_begin(None, None, None)
        meter.on_step_end(None, None, None)
    assert meter.cost(2, lambda steps: 5 * steps).energy_j == pytest.approx(2.5)
