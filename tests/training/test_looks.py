"""Evaluations at held-out texts: their curve, and what ends a training."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.decoders import loaded
from support.models import tiny_llama
from support.runs import made_up_trajectories
from support.wording import wording

from specbench.common.errors import NothingLearnt
from specbench.methods.jf import learning, train
from specbench.training import finetuning
from specbench.training.loop.stopping import stop_reason
from specbench.training.recipe import Job, WeightOptions

VOCAB = 50
PARTS = {
    "steps": 6,
    "batch": 2,
    "lr": 1e-2,
    "lora_rank": 4,
    "eval_every": 2,
    "save_every": 5,
    "bf16": False,
    "watched": 1,
}


def job(out: Path, printed: list[str], aside: int = 2) -> Job:
    texts = [made_up_trajectories(f"made/{number}", answer=9 + number, vocab=VOCAB) for number in range(7)]
    return Job(loaded(tiny_llama(VOCAB)), texts[aside:], texts[:aside], out, 0, printed.append, model="tiny")


def trained(out: Path, printed: list[str] | None = None, **options: Any) -> Mapping[str, Any]:
    return train.train(train.Options.model_validate({**PARTS, **options}), job(out, [] if printed is None else printed))


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "adapter" / "adapter_model.safetensors")


def same(one: Path, other: Path) -> bool:
    mine, theirs = weights(one), weights(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, Any]]:
    out = tmp_path_factory.mktemp("whole")
    return out, trained(out)


def test_a_card_has_the_course_of_its_training(whole: tuple[Path, Mapping[str, Any]]) -> None:
    out, made = whole
    curve = made["curve"]
    assert [point["step"] for point in curve] == [0, 2, 4, 6]
    seen = [point["tokens_seen"] for point in curve]
    assert seen[0] == 0
    assert seen == sorted(set(seen))
    assert seen[-1] == made["cost"]["tokens_seen"]
    assert json.loads((out / "adapter" / "card.json").read_text())["curve"] == curve
    page = (out / "adapter" / "README.md").read_text()
    assert f"| {seen[1]:,} | 2 | {curve[1]['tpf']:.2f} |" in page
    assert "ended" not in made


def ending(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """The evaluation at a step is of weights that should not be kept."""
    own, looks = finetuning.stop_reason, [-2]

    def at_this(options: WeightOptions, first: Mapping[str, Any], now: Mapping[str, Any]) -> str:
        looks[0] += 2
        assert own(options, first, now) == ""
        return "all is a loop" if looks[0] == step else ""

    monkeypatch.setattr(finetuning, "stop_reason", at_this)


def test_a_look_ends_a_training_and_the_weights_of_the_look_before_are_kept(
    whole: tuple[Path, Mapping[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: dict[int, dict[str, torch.Tensor]] = {}
    own = learning.Lesson.forward

    def forward(self: Any, **batch: Any) -> Any:
        states[len(states)] = copy.deepcopy(
            {name: p.detach() for name, p in self.named_parameters() if p.requires_grad}
        )
        return own(self, **batch)

    monkeypatch.setattr(learning.Lesson, "forward", forward)
    ending(monkeypatch, 4)
    printed: list[str] = []
    made = trained(tmp_path, printed, max_loops=1)
    assert made["ended"] == "all is a loop"
    assert made["steps"] == 2
    assert [point["step"] for point in made["curve"]] == [0, 2, 4]
    assert made["cost"]["tokens_seen"] == made["curve"][1]["tokens_seen"]
    assert wording("\n".join(printed))
    assert len(states) == 4  # steps that were begun
    after_two = {name.partition("base_model.")[2].replace(".default", ""): p for name, p in states[2].items()}
    kept = {name.removeprefix("base_model."): value for name, value in weights(tmp_path).items()}
    assert kept.keys() == after_two.keys()
    assert all(torch.equal(kept[name], after_two[name].to(torch.bfloat16)) for name in kept)
    assert wording((tmp_path / "adapter" / "README.md").read_text())
    assert not same(tmp_path, whole[0])


def test_what_was_ended_stays_ended_when_the_command_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        ending(patch, 4)
        first = trained(tmp_path, max_loops=1)
    before = weights(tmp_path)
    again = trained(tmp_path, max_loops=1)
    assert (again["steps"], again["ended"], again["curve"]) == (2, first["ended"], first["curve"])
    assert all(torch.equal(value, weights(tmp_path)[name]) for name, value in before.items())


def test_where_nothing_is_sound_after_a_step_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ending(monkeypatch, 2)
    with pytest.raises(NothingLearnt, check=wording):
        trained(tmp_path, max_loops=1)
    assert not (tmp_path / "adapter").exists()


def test_a_rule_that_ends_nothing_changes_nothing(whole: tuple[Path, Mapping[str, Any]], tmp_path: Path) -> None:
    made = trained(tmp_path, max_loops=1, max_unlikely=1e6)
    assert same(whole[0], tmp_path)
    assert made["curve"] == whole[1]["curve"]


LIKELY, ALL = "sound_log_likelihood_per_token", "log_likelihood_per_token"


@pytest.mark.parametrize(
    ("options", "first", "now", "why"),
    [
        ({}, {"loop_share": 0.0}, {"loop_share": 1.0}, []),
        ({"max_loops": 0.1}, {"loop_share": 0.25}, {"loop_share": 0.3501}, ["35.0%", "25.0%"]),
        ({"max_loops": 0.1}, {"loop_share": 0.25}, {"loop_share": 0.35}, []),
        ({"max_loops": 0.1}, {}, {"loop_share": 0.2}, ["20.0%", "0.0%"]),
        ({"max_loops": 0.1}, {}, {}, []),
        (
            {"max_unlikely": 0.03},
            {LIKELY: -0.3},
            {LIKELY: -0.3091},
            ["-0.309", "-0.300"],
        ),
        ({"max_unlikely": 0.03}, {LIKELY: -0.3}, {LIKELY: -0.3089}, []),
        ({"max_unlikely": 0.03}, {LIKELY: -0.3}, {LIKELY: -0.1}, []),
        ({"max_unlikely": 0.03}, {}, {LIKELY: -9.0}, []),
        ({"max_unlikely": 0.03}, {LIKELY: -0.4, ALL: -0.3}, {LIKELY: -0.4, ALL: -0.4}, []),  # it loops less
    ],
)
def test_what_is_unsound(
    options: dict[str, Any], first: dict[str, float], now: dict[str, float], why: list[str]
) -> None:
    found = stop_reason(WeightOptions(**options), first, now)
    assert all(part in found for part in why)
    assert bool(found) == bool(why)
