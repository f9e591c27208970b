"""Layers by our own C++: the same bits for a row alone and in any tree, what goes through them, and what does not."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support.decoders import random_tree
from support.models import SUPPORTED, attached, build, prompt, supported
from support.wording import wording
from torch import Tensor

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.common import EnvironmentRefused
from specbench.common.native import Native
from specbench.decoding import TokenTree
from specbench.engine import Engine, graphs
from specbench.engine.cpu import library
from specbench.engine.sampler import Sampling
from specbench.models.packed import bytes_of, round_weights

DENSE = ("llama", "qwen2", "qwen3", "mistral", "phi3", "gemma3")
TOP = 8  # scores that are compared


def sized(family: str, dtype: torch.dtype = torch.float32, **sizes: Any) -> Any:
    """A tiny model of a family with heads of 24: more than a register holds, and no multiple of one."""
    config, model, options = SUPPORTED[family]
    return build((config, model, {**options, "head_dim": 24, "hidden_size": 96, **sizes})).to(dtype)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def scores_of(engine: Engine, ids: Sequence[int], tree: TokenTree) -> Tensor:
    """Scores [rows, TOP] of a tree after a prompt whose last token is its root."""
    slot = engine.alloc()
    try:
        engine.prefill(slot, ids)
        top = engine.step({slot: tree}, top_k=TOP)[slot].top
        assert top is not None
        return top[0]
    finally:
        engine.free(slot)


def scores_one_by_one(engine: Engine, ids: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """Scores [TOP] after the last of ``tokens``, with a separate step for each token."""
    slot = engine.alloc()
    try:
        engine.prefill(slot, ids)
        for token in tokens:
            top = engine.step({slot: TokenTree.chain([token])}, top_k=TOP)[slot].top
        assert top is not None
        return top[0][0]
    finally:
        engine.free(slot)


def path_of(tree: TokenTree, row: int) -> list[int]:
    rows = [row]
    while tree.parents[rows[-1]] >= 0:
        rows.append(tree.parents[rows[-1]])
    return [tree.tokens[each] for each in reversed(rows)]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("set_default", [torch.set_default_dtype, torch.set_default_device])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_defaults_of_torch_change_no_score(native: bool, set_default: Any, temperature: float) -> None:
    """A plug-in may have set them: what C++ writes to is as wide as it writes, and on the CPU."""
    others = [torch.bfloat16, torch.float64] if set_default is torch.set_default_dtype else ["meta"]
    usual = torch.float32 if set_default is torch.set_default_dtype else None
    sampling = Sampling(temperature=temperature, seed=3)
    with attached(sized("llama"), capacity=96, max_rows=8, native=native, sampling=sampling) as engine:
        ids, tree = prompt(9, 97, seed=1), random_tree(random.Random(1), 3, 97, 7)
        before = scores_of(engine, ids, tree)
        for other in others:
            set_default(other)
            try:
                after = scores_of(engine, ids, tree)
            finally:
                set_default(usual)
            assert torch.equal(after, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", DENSE)
def test_a_row_has_the_same_bits_in_a_tree_and_alone(family: str, dtype: torch.dtype) -> None:
    model = sized(family, dtype)
    vocab = model.get_input_embeddings().num_embeddings
    rng = random.Random(family)
    with attached(model, slots=2, capacity=96, max_rows=48, native=True) as engine:
        assert engine.code.linears == "own"
        for rows in (2, 7, 40):
            ids = prompt(5 + rows, vocab, seed=rows)
            tree = random_tree(rng, 3, vocab, rows)
            together = scores_of(engine, ids, tree)
            for row in {0, rows - 1, *rng.sample(range(rows), min(rows, 4))}:
                assert torch.equal(together[row], scores_one_by_one(engine, ids, path_of(tree, row)))


def test_bits_depend_neither_on_threads_nor_on_other_sequences() -> None:
    model = sized("qwen3")
    ids, others = prompt(30, 300), prompt(11, 300, seed=2)
    tree = random_tree(random.Random(0), 5, 300, 17)
    with attached(model, slots=3, capacity=96, max_rows=32, native=True) as engine:
        alone = []
        for count in (1, 2, 3):
            with threads(count):
                alone.append(scores_of(engine, ids, tree))
        first, second = engine.alloc(), engine.alloc()
        engine.prefill(first, others)
        engine.prefill(second, ids)
        top = engine.step({first: TokenTree.chain([1, 2]), second: tree}, top_k=TOP)[second].top
    assert top is not None
    assert all(torch.equal(alone[0], each) for each in (*alone, top[0]))


@pytest.mark.parametrize(
    ("family", "why"), [("mixtral", "its layers have no mlp.gate_proj"), ("gpt2", "its layers have no self_attn")]
)
def test_what_is_not_of_the_kind_steps_as_before_and_says_why(family: str, why: str) -> None:
    model = supported(family)
    with attached(model, capacity=32, max_rows=4) as engine:
        report = engine.report()
        assert report["linears"] == "onednn"
        assert report["why_not_own"] == why
    with pytest.raises(EnvironmentRefused, check=wording):
        Engine(model, capacity=32, max_rows=4, native=True)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        pytest.param({"compile": True}, "torch.compile was requested", marks=pytest.mark.slow),  # it compiles
        ({"graphs": True}, "captured steps can hold only torch operations"),
    ],
)
def test_who_asks_for_another_way_of_stepping_gets_it(
    options: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)
    with attached(supported("llama"), capacity=32, max_rows=4, **options) as engine:
        assert engine.code.linears == "onednn"
        assert engine.code.why.startswith(why)


def test_a_factor_that_no_module_shows_is_found_and_the_model_still_runs() -> None:
    sizes = {"vocab_size": 97, "residual_multiplier": 0.5}
    with attached(build(("GraniteConfig", "GraniteForCausalLM", sizes)), capacity=32, max_rows=4) as engine:
        assert engine.code.linears == "onednn"
        assert wording(engine.code.why)


def test_attention_that_scales_queries_by_their_place_is_not_of_the_kind() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e4, "original_max_position_embeddings": 32}
    sizes = {"vocab_size": 97, "rope_parameters": {**rope, "llama_4_scaling_beta": 0.5}}
    with attached(build(("Ministral3Config", "Ministral3ForCausalLM", sizes)), capacity=64, max_rows=4) as engine:
        assert engine.code.linears == "onednn"  # the comparison at load is of a text that is shorter than those 32
        assert wording(engine.code.why)


def test_a_closed_engine_leaves_the_model_as_it_was() -> None:
    model = build(SUPPORTED["llama"])
    before = {module: dict(module.__dict__) for module in model.modules()}
    with attached(model, capacity=32, max_rows=4, native=True) as engine:
        assert engine.code.linears == "own"
    for module, attributes in before.items():
        assert module.__dict__.keys() == attributes.keys()


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A process that has not loaded it yet, and a compiler that fails."""
    bad = tmp_path / "c++"
    bad.write_text("#!/bin/sh\necho 'layer.cpp:1: error: no room' >&2\nexit 1\n")
    bad.chmod(0o755)
    monkeypatch.setenv("CXX", str(bad))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "_failed", [])
    library._loaded.cache_clear()
    yield
    library._loaded.cache_clear()


@pytest.mark.usefixtures("no_library")
def test_a_compiler_that_fails_ends_in_the_path_without_it_and_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []
    compile_ = Native._compile

    def counted(self: Native, compiler: str, to: Path) -> None:
        tries.append(compiler)
        compile_(self, compiler, to)

    monkeypatch.setattr(Native, "_compile", counted)
    for _ in range(2):
        with attached(supported("llama"), capacity=32, max_rows=4) as engine:
            assert engine.code.linears == "onednn"
            assert wording(engine.code.why)
    assert len(tries) == 1


@pytest.mark.parametrize("family", ["llama", "qwen2", "phi3"])
def test_weights_of_eight_bits_are_those_of_the_model_that_reads_them(family: str) -> None:
    model = sized(family)
    full = bytes_of(model)
    original = {name: weight.clone() for name, weight in model.named_parameters()}
    round_weights(model)
    assert bytes_of(model) < 0.4 * full
    for name, weight in model.named_parameters():
        assert (weight - original[name]).abs().max() <= original[name].abs().max() / 127
    ids, tree = prompt(9, 97), TokenTree.chain([1, 2, 3])
    with attached(model, capacity=32, max_rows=4, native=False) as engine:
        plain = scores_of(engine, ids, tree)
    with attached(model, capacity=32, max_rows=4, native=True) as engine:
        assert (scores_of(engine, ids, tree) - plain).abs().max() <= 1e-4 * plain.abs().max()
        alone = scores_one_by_one(engine, ids, [1, 2, 3])
        assert torch.equal(scores_of(engine, ids, tree)[-1], alone)


def test_memory_does_not_grow_with_the_row_counts_seen() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    with attached(sized("llama"), capacity=96, max_rows=64, native=True) as engine:
        ids, seen = prompt(9, 97), []
        for _ in range(2):
            for rows in range(1, 65):
                scores_of(engine, ids, TokenTree.chain([1] * rows))
            seen.append(resident())
    assert seen[1] - seen[0] < 2 << 20
