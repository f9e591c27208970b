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
from support.wording import wording
from torch import Tensor, nn

from specbench.training import card
from specbench.training.cost import Cost, Meter, peak_memory_bytes
from specbench.training.loop import Course, Done, fit
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
    # A row is multiplied once forward and once for the gradient of the weights; its own gradient nobody asks for.
    assert cost.flops == pytest.approx(cost.tokens_seen * 2 * (2 * IN * OUT))
    assert cost.hours > 0
    assert (cost.energy_j, cost.processes, cost.device) == (None, 1, "cpu")
    assert cost.peak_memory_bytes is not None
    assert 50e6 < cost.peak_memory_bytes <= peak_memory_bytes(torch.device("cpu"))


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


def test_a_checkpoint_from_before_costs_were_kept_is_gone_on_with(tiny: Any, tmp_path: Path) -> None:
    def cut(line: str) -> None:
        if line.startswith("step 4/"):
            raise Cut

    with pytest.raises(Cut):
        learn(tmp_path, tiny, cut)
    state = tmp_path / "checkpoints" / "checkpoint-3" / "trainer_state.json"
    kept = json.loads(state.read_text())
    del kept["stateful_callbacks"]["Meter"]
    state.write_text(json.dumps(kept))
    cost = learn(tmp_path, tiny).cost
    assert cost.flops is None, "its first step was not counted, and none is taken for it"
    assert cost.tokens_seen > 0


def test_attention_that_torch_cannot_count_leaves_operations_out() -> None:
    lesson = _Lesson()
    lesson.layer.config = type("Config", (), {"_attn_implementation": "flex_attention"})()
    meter = Meter(lesson)
    with meter.counting(0):
        lesson(torch.ones(3, IN))["loss"].backward()
    assert meter.cost(1, lambda steps: 3).flops is None


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


def test_a_card_says_what_a_training_took() -> None:
    took = {"tokens_seen": 1234567, "flops": 2.5e15, "hours": 1.5, "energy_j": 7.2e6, "device": "H200", "processes": 2}
    said = card._cost({"cost": took})[0]
    assert "1,234,567 tokens" in said
    assert wording(said)
    assert card._cost({}) == []


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


def test_energy_of_which_a_step_is_missing_is_none() -> None:
    for missing in range(4):
        read = iter([None if at == missing else 1_000 * at for at in range(4)])
        gpu = type("Gpu", (), {"look": lambda self, read=read: type("Snapshot", (), {"energy_mj": next(read)})()})
        meter = Meter(_Lesson(), gpu=lambda device, gpu=gpu: gpu())  # type: ignore[misc]
        for _ in range(2):
            meter.on_step_begin(None, None, None)
            meter.on_step_end(None, None, None)
        assert meter.cost(2, lambda steps: 5 * steps).energy_j is None, missing


@pytest.mark.parametrize("wrong", [{"seconds": float("nan")}, {"seconds": -7.0}, {"first_step_flops": -1.0}])
def test_a_damaged_cost_in_a_checkpoint_is_none_at_all(wrong: dict[str, float], tiny: Any, tmp_path: Path) -> None:
    def cut(line: str) -> None:
        if line.startswith("step 4/"):
            raise Cut

    with pytest.raises(Cut):
        learn(tmp_path, tiny, cut)
    state = tmp_path / "checkpoints" / "checkpoint-3" / "trainer_state.json"
    kept = json.loads(state.read_text())
    kept["stateful_callbacks"]["Meter"]["attributes"]["spent"].update(wrong)
    state.write_text(json.dumps(kept))
    cost = learn(tmp_path, tiny).cost
    assert cost.flops is None
    assert 0 < cost.hours < 0.1


def test_a_cost_of_a_later_version_is_read() -> None:
    assert Cost.model_validate({"tokens_seen": 1, "hours": 0.5, "trees_felled": 3}).hours == 0.5
