"""The benchmark of a step's host time: its device does nothing, and its figures are of the steps that it says."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from support.models import supported

from benchmarks import host_step
from specbench.engine.pack import Batch, Outcome, Shape

ROOT = Path(__file__).parents[1]


@pytest.fixture
def model() -> Any:
    return supported("llama")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_step, "STEPS", 4)
    monkeypatch.setattr(host_step, "VOCAB", 97)


def test_trees_are_what_drafters_hand_over() -> None:
    rng = random.Random(0)
    root, chain, tree = (host_step.drawn_tree(rng, rows) for rows in (1, 8, 64))
    assert (len(root), len(chain), len(tree)) == (1, 8, 64)
    assert chain.is_chain
    assert not tree.is_chain
    trees = {0: root, 2: chain, 3: tree}
    shape = Shape(80, 4)
    results = Outcome(host_step.outcome_of(trees, shape), shape, 0).results(Batch.of(trees))
    assert [len(result.path) for result in results.values()] == [1, 3, 3]
    assert all(
        trees[3].parents[row] == before for before, row in zip(results[3].path, results[3].path[1:], strict=False)
    )


@pytest.mark.parametrize(("rows", "sequences"), [(1, 1), (8, 3), (64, 9)], ids=["ar", "captured", "eager"])
def test_the_device_does_nothing_and_the_host_all(model: Any, rows: int, sequences: int) -> None:
    steps = host_step.Steps(model, rows, sequences)
    emitted = {len(result.emitted) for result in steps._engine.step(steps._trees()).values()}
    assert emitted == {min(rows, host_step.ACCEPTED)}  # as prepared
    for slot in range(sequences):
        steps._engine.rewind(slot, host_step.CONTEXT)
    found = steps.measure()
    assert tuple(found) == host_step.OWN
    assert all(0 < found[name] < 0.1 for name in ("pack", "results", "loop"))
    assert model.config._attn_implementation != "specbench"


def test_real_steps_are_known_by_their_phases(model: Any) -> None:
    found = host_step.Real(model, "pld", 2).measure()
    assert tuple(found) == (*host_step.PHASES, "forward")
    assert found["forward"] > found["draft"] > 0


@pytest.mark.slow
def test_two_checkouts_are_measured_in_turn() -> None:
    table = host_step.compare({"here": ROOT, "there": ROOT}, [("1", 2), ("ar", 2)], 3)
    assert [row["figure"] for row in table] == [*host_step.OWN, *host_step.PHASES, "forward"]
    for row in table[:2]:
        low, high = row["ratio_quartiles"]
        assert 0 < low <= row["ratio"] <= high
        assert min(row["here"], row["there"]) > 1  # µs


def test_a_folder_without_the_package_is_no_checkout(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=tmp_path.name):
        host_step.compare({"there": tmp_path}, [("1", 1)], 1)
