"""Trees that do not fit in memory are refused before a model is loaded, with the option to lower; those that do run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.asserting import refusal
from support.models import attached, build, supported

from specbench.common.errors import EnvironmentRefused
from specbench.models import configured_shape, resolve
from specbench.planning import memory_check
from specbench.planning.memory_check import MemoryBudget, how_to_shrink
from specbench.planning.methods import plan_methods
from specbench.planning.plan import Plan
from specbench.planning.preflight import check_ready
from specbench.planning.resolving import resolve as resolved
from specbench.profiling.shape import shape_of
from specbench.runner.session import Session

GIB = 2.0**30


def has(monkeypatch: pytest.MonkeyPatch, memory: float, free: float) -> None:
    """A machine of so many bytes."""
    monkeypatch.setattr(memory_check, "_memory", lambda plan: (memory, free))


OTHERS = {
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", {"num_experts": 8, "moe_intermediate_size": 24}),
    "starcoder2": ("Starcoder2Config", "Starcoder2ForCausalLM", {"sliding_window": 16, "tie_word_embeddings": False}),
    "starcoder2, tied": ("Starcoder2Config", "Starcoder2ForCausalLM", {}),
}


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", *OTHERS])
def test_a_shape_by_the_configuration_is_that_of_the_loaded_model(family: str, tmp_path: Path) -> None:
    model = build(OTHERS[family]) if family in OTHERS else supported(family)
    model.config.to_json_file(tmp_path / "config.json", use_diff=False)
    with attached(model, capacity=40, max_rows=8) as engine:
        assert configured_shape(resolve(str(tmp_path)), "float32") == shape_of(engine)


@pytest.mark.parametrize(
    ("method", "settings", "order"),
    [
        ("jf", ["n=512", "pool=64"], "lower block_size or pool_size"),
        ("jf", ["n=64", "K=16", "pool=2"], "lower block_size or num_blocks"),
        ("lookahead", ["W=256", "N=9", "G=256"], "lower ngram_size or guess_set_size or window_size"),
        ("msn", [], "make the tree of msn smaller, see specbench list msn"),
        ("msn", ["preset=jacobi"], "lower draft_length"),
    ],
)
def test_the_options_that_make_a_tree_smaller_are_named(method: str, settings: list[str], order: str) -> None:
    assert how_to_shrink(plan_methods([method], settings)[1]) == order


def test_trees_without_room_are_refused_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = Plan(model="config:tiny", method="jf", settings=("n=512", "pool=64"), no_score=True, task="humaneval")
    has(monkeypatch, 8 * GIB, 8 * GIB)
    text = refusal(EnvironmentRefused, check_ready, resolved(wide))
    assert text.startswith("jf: no memory for a tree of 33,217 rows: a step takes ")
    assert text.endswith("and 8 GiB are free; lower block_size or pool_size")
    monkeypatch.setattr(memory_check, "_memory", lambda plan: (None, None))  # where nothing says, nothing is refused
    assert MemoryBudget.of(wide, 1).refusal(resolved(wide).methods, now=True) is None


def test_weights_cache_and_sequences_count(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = plan_methods(["jf"], ["n=256", "pool=16"])
    has(monkeypatch, 8 * GIB, 1.4 * GIB)

    def refused(now: bool = True, slots: int = 1, **more: Any) -> bool:
        return MemoryBudget.of(Plan(model="smollm2-135m", **more), slots).refusal(methods, now=now) is not None

    # 0.5 GiB of weights, 0.2 of cache and 0.8 of a step are more than are free, and less than there are.
    assert (refused(), refused(now=False)) == (True, False)
    assert not refused(dtype="bfloat16")
    assert refused(now=False, slots=8)
    assert not refused(now=False, max_new_tokens=16)
    assert refused(now=False, max_new_tokens=1 << 17)


def test_a_session_says_which_option_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    from specbench.models import load

    model = load("config:tiny", device="cpu")
    monkeypatch.setattr("specbench.engine.memory.free_bytes", lambda device: GIB)
    methods = plan_methods(["jf"], ["n=512", "pool=16"])
    text = refusal(EnvironmentRefused, Session, model, methods, capacity=64)
    assert text.startswith("jf: no memory for a tree of 8,689 rows")
    assert text.endswith("and 1 GiB are free; lower block_size or pool_size")
