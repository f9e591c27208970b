"""Fine-tuning: recipes teach what they promise, interrupted ones end where whole ones do, and errors lose nothing."""

from __future__ import annotations

import copy
import importlib
import itertools
import json
import resource
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support import models
from support.decoders import loaded
from support.models import tiny_llama
from support.runs import made_up_trajectories
from support.wording import wording

from specbench.common.errors import EnvironmentRefused, UsageError
from specbench.engine.sampler import Sampling
from specbench.methods.jf import learning
from specbench.training.data import trajectory_folder as trajectory
from specbench.training.data.collection import Collecting, collect
from specbench.training.recipe import Job

VOCAB = 50
PARTS = {"steps": 8, "batch": 2, "lr": 1e-2, "lora_rank": 4, "log_every": 1, "save_every": 2, "bf16": False}


def train(method: str, options: dict[str, Any], job: Job) -> Any:
    recipe = importlib.import_module(f"specbench.methods.{method}.train")
    return recipe.train(recipe.Options(**options), job)


# ------------------------------------------------------------------------------------------- what is learnt


@pytest.fixture(scope="module")
def speaker() -> Any:
    return models.speaker()


@pytest.fixture(scope="module")
def trajectories(speaker: Any, tmp_path_factory: pytest.TempPathFactory) -> list[trajectory.Trajectory]:
    folder = tmp_path_factory.mktemp("trajectories")
    collect(loaded(speaker), models.texts(240), Sampling(), Collecting(block_size=10), folder, rows=256)
    return list(trajectory.read(folder))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "own"),
    [
        ("jf", {"noise_window": 3, "noise_ends": "closed", "noise_rotate": True, "ar_weight": 1, "lr": 3e-3}),
        ("cllm", {"ar_weight": 3}),
        ("msn", {}),
    ],
)
def test_200_steps_save_a_third_of_the_forwards_and_no_answer_changes(
    method: str, own: dict[str, Any], speaker: Any, trajectories: Sequence[Any], tmp_path: Path
) -> None:
    right = {text.id: bytes(text.answer).decode() for text in trajectories}

    def score(prompt_id: str, text: str) -> bool:
        return text == right[prompt_id]

    target, known, aside = loaded(copy.deepcopy(speaker)), trajectories[16:], trajectories[:16]
    job = Job(target, known, aside, tmp_path, 0, lambda line: None, score=score)
    common = {"full": True, "steps": 200, "batch": 16, "lr": 2e-3, "bf16": False}
    card = train(method, {**common, "eval_every": 500, "save_every": 500, **own}, job)
    assert card["before"]["pass_rate"] == card["after"]["pass_rate"] == 1
    assert card["after"]["agrees"] > 0.99
    assert card["after"]["tpf"] > 1.5 * card["before"]["tpf"]
    assert card["answer_tokens"] == 200 * 16 * models.ANSWER


def test_a_few_steps_teach_something(speaker: Any, trajectories: Sequence[Any], tmp_path: Path) -> None:
    target, known, aside = loaded(copy.deepcopy(speaker)), trajectories[4:], trajectories[:4]
    options = {"full": True, "steps": 80, "batch": 8, "lr": 5e-3, "bf16": False, "eval_every": 500, "save_every": 500}
    card = train("cllm", {**options, "ar_weight": 3}, Job(target, known, aside, tmp_path, 0, lambda line: None))
    assert card["after"]["tpf"] > 1.2 * card["before"]["tpf"]
    assert card["after"]["agrees"] > 0.9


# ------------------------------------------------------------------------- what is the same, whatever happens


def texts(count: int = 7) -> list[Any]:
    return [made_up_trajectories(f"made/{number}", answer=9 + number, vocab=VOCAB) for number in range(count)]


def job(out: Path, say: Callable[[str], None] = lambda line: None, aside: int = 2, learnt: Any = None) -> Job:
    known = texts() if learnt is None else learnt
    return Job(loaded(tiny_llama(VOCAB)), known[aside:], known[:aside], out, 0, say, model="tiny")


def learnt(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "adapter" / "adapter_model.safetensors")


def assert_same(one: Path, other: Path) -> None:
    mine, theirs = learnt(one), learnt(other)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that nothing has happened to: of three visits, the last of them not to its end."""
    out = tmp_path_factory.mktemp("whole")
    train("jf", PARTS, job(out))
    return out


def cut(line: str) -> None:
    if line.startswith("step 7/"):
        raise Cut


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that has ended after its sixth step."""
    out = tmp_path_factory.mktemp("stopped")
    with pytest.raises(Cut):
        train("jf", PARTS, job(out, cut))
    return out


class Cut(Exception):
    """The process ends here."""


@pytest.mark.parametrize(
    ("method", "own"),
    [
        ("jf", {"noise_order": "random", "lora_dropout": 0.3, "eval_every": 3}),
        ("cllm", {"full": True, "accumulation": 2}),
    ],
)
def test_an_interrupted_training_ends_where_a_whole_one_does(method: str, own: dict[str, Any], tmp_path: Path) -> None:
    options = {**PARTS, "watched": 1, **own}
    train(method, options, job(tmp_path / "whole"))
    with pytest.raises(Cut):
        train(method, options, job(tmp_path / "parts", cut))
    printed: list[str] = []
    train(method, options, job(tmp_path / "parts", printed.append))
    assert printed[0].endswith("checkpoint-6")
    assert printed[1].startswith("step 7/8")
    one, other = (load_file(next((tmp_path / name).glob("*/*model.safetensors"))) for name in ("whole", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_damaged_checkpoint_is_named(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "parts")
    (last,) = tmp_path.glob("parts/checkpoints/checkpoint-6")
    for name in ("trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth", "model.safetensors"):
        good = (last / name).read_bytes()
        (last / name).write_bytes(b"[" * 10**5)
        with pytest.raises(UsageError, check=wording):
            train("jf", PARTS, job(tmp_path / "parts"))
        (last / name).write_bytes(good)
    shutil.rmtree(last)  # as the error says
    train("jf", PARTS, job(tmp_path / "parts"))


def test_half_a_checkpoint_is_none_and_no_other_training_is_mixed_into_one(
    stopped: Path, whole: Path, tmp_path: Path
) -> None:
    shutil.copytree(stopped, tmp_path / "parts")
    torn = tmp_path / "parts" / "checkpoints" / "checkpoint-8"
    torn.mkdir()
    (torn / "model.safetensors").write_bytes(b"half")
    with pytest.raises(UsageError, check=wording):
        train("jf", {**PARTS, "lr": 0.5}, job(tmp_path / "parts"))
    with pytest.raises(UsageError, check=wording):
        train("jf", PARTS, job(tmp_path / "parts", learnt=texts(8)))
    with pytest.raises(UsageError, check=wording):
        train("jf", {**PARTS, "distance": "reverse"}, job(tmp_path / "parts"))
    settings = tmp_path / "parts" / "options.json"  # as it was before there was a choice of distances
    before = {name: value for name, value in json.loads(settings.read_text()).items() if name != "distance"}
    settings.write_text(json.dumps(before))
    with pytest.raises(UsageError, check=wording):
        train("jf", {**PARTS, "distance": "reverse"}, job(tmp_path / "parts"))
    printed: list[str] = []  # these are no part of what is learnt
    train("jf", {**PARTS, "log_every": 7, "watched": 1}, job(tmp_path / "parts", printed.append))
    assert printed[0].endswith("checkpoint-6")
    assert_same(whole, tmp_path / "parts")


def _at_call(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[Any], Any]) -> None:
    """The loss of a step, as something changes it."""
    calls = itertools.count(1)
    own = learning.Lesson.forward

    def forward(self: Any, **batch: Any) -> Any:
        found = own(self, **batch)
        return act(found) if next(calls) == number else found

    monkeypatch.setattr(learning.Lesson, "forward", forward)


def _raises(error: Exception) -> Callable[[Any], Any]:
    def act(found: Any) -> Any:
        raise error

    return act


NO_MEMORY = "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"


def test_what_goes_wrong_is_one_line_and_the_same_command_goes_on(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, cpu = torch.OutOfMemoryError("CUDA out of memory"), RuntimeError(NO_MEMORY)
    for call, act, kind in (
        (5, _raises(cuda), EnvironmentRefused),
        (1, _raises(cpu), EnvironmentRefused),  # step 5 once more
        (1, _no_number, UsageError),
    ):
        with monkeypatch.context() as patch:
            _at_call(patch, call, act)
            with pytest.raises(kind, check=wording) as raised:
                train("jf", PARTS, job(tmp_path))
        assert "\n" not in str(raised.value)
        assert wording(raised.value)
    train("jf", PARTS, job(tmp_path))
    assert_same(whole, tmp_path)


def _no_number(found: Any) -> Any:
    return {**found, "loss": found["loss"] * torch.nan}


def test_weights_that_are_not_finite_are_never_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def poison(found: Any) -> Any:  # a gradient that is NaN, although the loss is finite
        loss = found["loss"]
        return {**found, "loss": loss + (loss - loss.detach()).sqrt()}

    _at_call(monkeypatch, 5, poison)
    with pytest.raises(UsageError, check=wording):
        train("jf", {**PARTS, "save_every": 5}, job(tmp_path))
    assert not list((tmp_path / "checkpoints").glob("*"))


@contextmanager
def full_disk(free: int) -> Iterator[None]:
    """No file gets longer than ``free`` bytes, which to a writer is a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _fill_at(line: str, start: str) -> None:
    if line.startswith(start):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def test_a_full_disk_leaves_the_last_good_checkpoint(whole: Path, tmp_path: Path) -> None:
    with full_disk(1 << 40), pytest.raises(EnvironmentRefused, check=wording) as raised:
        train("jf", PARTS, job(tmp_path, lambda line: _fill_at(line, "step 5/")))
    assert "\n" not in str(raised.value)
    assert {path.name for path in (tmp_path / "checkpoints").glob("*")} == {"checkpoint-2", "checkpoint-4"}
    with full_disk(1 << 40), pytest.raises(EnvironmentRefused, check=wording):
        train("jf", PARTS, job(tmp_path, lambda line: _fill_at(line, "held out, all")))
    assert not list(tmp_path.glob("*adapter*"))
    train("jf", PARTS, job(tmp_path))
    assert_same(whole, tmp_path)


# -------------------------------------------------------------------------------------------- what is refused


# ------------------------------------------------------------------------------------------------ what is kept


def test_the_card_says_what_was_learnt_and_what_it_brought(whole: Path) -> None:
    card = json.loads((whole / "adapter" / "card.json").read_text())
    seen = sum(len(text.answer) for text in texts()[2:])
    assert (card["method"], card["model"], card["texts"], card["steps"]) == ("jf", "tiny", 5, 8)
    assert card["visits"] == pytest.approx(8 / 3, abs=1e-2)
    assert 2 * seen < card["answer_tokens"] < 3 * seen
    assert set(card["base_fingerprints"]) == {"float32", "bfloat16", "float16"}
    assert card["before"]["prompts"] == card["after"]["prompts"] == 2
    for figures in (card["before"], card["after"]):
        assert figures.keys() >= {"looping", "loop_share", "distinct_4", "agreement", "log_likelihood_per_token"}
    assert card["options"]["lora_rank"] == 4
    readme = (whole / "adapter" / "README.md").read_text()
    assert all(part in readme for part in (f"{card['before']['tpf']:.3f}", f"{card['after']['tpf']:.3f}"))
    assert f"{card['answer_tokens']}" in readme
    config = json.loads((whole / "adapter" / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["r"]) == ("tiny", 4)
    assert {tensor.dtype for tensor in learnt(whole).values()} == {torch.bfloat16}
