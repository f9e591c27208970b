"""Captured steps say what eager steps say: nothing of the step they were captured on is baked in."""

from __future__ import annotations

import gc
import json
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from support.decoders import hiding_drafts, random_tree
from support.models import REFUSED, attached, autoregressive, build, decode, prompt, supported
from support.wording import wording

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.common.errors import EnvironmentRefused
from specbench.decoding.tree import COMPUTED, TokenTree
from specbench.engine import graphs
from specbench.engine.buckets import ROW_BUCKETS, row_bucket
from specbench.engine.engine import Engine
from specbench.engine.graphs import CaptureFailed, cuda_capture
from specbench.engine.sampler import Sampling

VOCAB = 97
TOKENS = 12
FAMILIES = (
    "llama", "qwen2", "qwen3", "mistral", "phi3", "gemma3", "gpt2", "mixtral", "gpt_oss", "gemma2", "llama4",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _captures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)


def trees(seed: int, truth: list[int], vocab: int) -> Any:
    return hiding_drafts(seed, truth, vocab, 5, 12)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_captured_step_serves_all_prompts_and_trees(family: str) -> None:
    model = supported(family)
    vocab = model.get_input_embeddings().num_embeddings
    prompts = [prompt(length, vocab, seed) for seed, length in enumerate((1, 19, 7))]
    with attached(model, slots=2, capacity=48, max_rows=16) as engine:
        expected = [autoregressive(engine, ids, TOKENS) for ids in prompts]
    with attached(model, slots=2, capacity=48, max_rows=16, graphs=True) as engine:
        for seed, (ids, truth) in enumerate(zip(prompts, expected, strict=True)):
            assert autoregressive(engine, ids, TOKENS) == truth
            assert decode(engine, ids, TOKENS, trees(seed, truth, vocab)) == truth
        engine.alloc()  # and in another slot, with a dead one before it
        assert autoregressive(engine, prompts[1], TOKENS) == expected[1]


@pytest.fixture(scope="module")
def model() -> Any:
    return supported("llama")


@pytest.fixture
def captured(model: Any) -> Iterator[Engine]:
    with attached(model, slots=3, capacity=60, max_rows=20, graphs=True) as engine:
        yield engine


def test_every_graph_is_captured_before_the_first_request(model: Any, captured: Engine) -> None:
    captured.prepare(20, context=30)
    found = captured.report()
    assert found["graphs"] == len([rows for rows in ROW_BUCKETS if rows <= 64])  # three trees of 20 rows
    assert found["late_captures"] == 0
    vocab = model.get_input_embeddings().num_embeddings
    rng = random.Random(0)
    roots: dict[int, int] = {}
    for _ in range(3):
        slot = captured.alloc()
        roots[slot] = captured.prefill(slot, prompt(5, vocab)).emitted[-1]
        for rows in (1, 3, 20):
            stepped = captured.step({one: random_tree(rng, root, vocab, rows) for one, root in roots.items()})
            roots = {one: result.emitted[-1] for one, result in stepped.items()}
    assert captured.report()["graphs"] == found["graphs"]
    # a step that was not prepared is captured when it comes, and counted as late
    captured.step({0: TokenTree.chain([1])}, top_k=2)
    assert captured.report()["late_captures"] == 1


@pytest.mark.parametrize("rope", ["dynamic rope", "longrope"])
def test_a_rope_that_asks_for_the_length_is_captured_as_far_as_it_is_constant(rope: str) -> None:
    recipe, _ = REFUSED[rope]  # of 32 positions and more
    model = build(recipe)
    ids, plain = prompt(7, 97), build(recipe)
    with torch.inference_mode():
        expected = plain.generate(torch.tensor([ids]), max_new_tokens=9, do_sample=False)[0, 7:].tolist()
    with attached(model, capacity=24, max_rows=8, graphs=True) as engine:
        engine.prepare(8)
        assert engine.report()["graphs"]
        assert autoregressive(engine, ids, 9) == expected
    with torch.inference_mode():
        text = torch.arange(40)[None] % 97  # longer than that: the model is its own again
        assert torch.equal(model(text).logits, plain(text).logits)


def test_what_a_step_hands_out_is_no_other_graphs_memory(model: Any) -> None:
    """Graphs share a pool: what one leaves there, the next that runs may overwrite."""
    with attached(model, slots=2, capacity=40, max_rows=8, graphs=True) as engine:
        slot = engine.alloc()
        engine.prefill(slot, prompt(5, VOCAB))
        first = engine.step({slot: TokenTree.chain([3, 4])}, taps=(0,))[slot].hidden
        assert first is not None
        assert engine._graphs is not None
        (graph,) = engine._graphs.graphs.values()
        assert graph.hidden is not None
        address = graph.hidden.data_ptr()
        graph.capture()
        assert graph.hidden.data_ptr() == address, "made once, before a capture, and not inside of one"


def test_probabilities_are_the_last_steps_whatever_size_its_graph_is_of(model: Any) -> None:
    sampled = Sampling(0.8, top_k=9, seed=4)
    rng, found = random.Random(2), []
    grown = [random_tree(rng, 3, VOCAB, rows) for rows in (2, 9, 1, 5, 9, 2)]
    for captured in (False, True):
        with attached(model, slots=2, capacity=60, max_rows=9, graphs=captured, sampling=sampled) as engine:
            slots = [engine.alloc(), engine.alloc()]
            seen = []
            for tree in grown:
                for slot in slots:
                    engine.rewind(slot, 0)
                    engine.prefill(slot, prompt(5 + slot, VOCAB))
                results = engine.step(dict.fromkeys(slots, tree), probabilities=True)
                seen += [
                    result.probabilities.clone() for result in results.values() if result.probabilities is not None
                ]
            found.append(seen)
    assert [len(rows) for rows in found[0]] == [len(tree) for tree in grown for _ in range(2)]
    torch.testing.assert_close(found[1], found[0])


SLOW_FOR_ONE = {1: 9.0, 2: 3.0, 4: 4.0, 8: 5.0, 16: 4.5, 32: 6.0, 48: 6.0, 64: 8.0}


def timed(engine: Engine, seconds: dict[int, float], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the engine pads to on a device of such step times."""
    tuner = engine._tuner
    assert tuner is not None

    def slow(rows: int, widest: int, kind: Any, context: int) -> float:
        tuner._seconds[rows, kind] = seconds[rows]
        return seconds[rows]

    with monkeypatch.context() as patched:
        patched.setattr(tuner, "_time", slow)
        engine.prepare(20)
    steps: list[dict[str, Any]] = engine.report()["steps"]
    return steps


def test_a_bucket_that_costs_more_than_a_larger_one_is_not_used(
    captured: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library's slow path for few rows, as one row of a plain matrix product can be."""
    (one,) = timed(captured, SLOW_FOR_ONE, monkeypatch)
    assert one["padded_to"] == {1: 2, 2: 2, 4: 4, 8: 16, 16: 16, 32: 32, 48: 48, 64: 64}
    slot = captured.alloc()
    captured.prefill(slot, [5, 6, 7])
    captured.step({slot: TokenTree.chain([5])})
    assert captured._graphs is not None
    assert [rows for rows, _ in captured._graphs.graphs] == [2]


def test_a_resumed_run_pads_as_the_run_before_it(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {"slots": 3, "capacity": 60, "max_rows": 20, "graphs": True}
    with attached(model, **how) as engine:
        timed(engine, SLOW_FOR_ONE, monkeypatch)
        before = json.loads(json.dumps(engine.report()["steps"]))  # as a record holds it
    even = dict.fromkeys(SLOW_FOR_ONE, 1.0)
    chains: list[str] = []
    with attached(model, **how) as engine:
        monkeypatch.setattr(engine.attentions, "keep", chains.append)
        engine.pad_as(before)
        (after,) = timed(engine, even, monkeypatch)
    assert json.loads(json.dumps(after["padded_to"])) == before[0]["padded_to"]
    assert chains == ["reference"]
    del before[0]["probabilities"]  # which records of older versions do not name
    with attached(model, **how) as engine:
        engine.pad_as(before)
        (after,) = timed(engine, even, monkeypatch)
    assert json.loads(json.dumps(after["padded_to"])) == before[0]["padded_to"]
    with attached(model, **how) as engine:
        engine.pad_as([before[0] | {"attention": "another"}])
        (other,) = timed(engine, even, monkeypatch)
    assert other["padded_to"][1] == 1


def test_no_bucket_is_taken_over_that_rows_do_not_fit_or_that_is_not_captured(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {"slots": 3, "capacity": 60, "max_rows": 20, "graphs": True}
    even = dict.fromkeys(SLOW_FOR_ONE, 1.0)
    with attached(model, **how) as engine:
        (before,) = timed(engine, even, monkeypatch)
    padded = {"1": 512, "2": 3, "4": 2, "8": 32}  # of an engine with other buckets, or of a larger one
    with attached(model, **how) as engine:
        engine.pad_as([before | {"padded_to": padded}])
        (after,) = timed(engine, even, monkeypatch)
    assert after["padded_to"] == before["padded_to"] | {8: 32}


def test_nothing_measured_decides_where_the_text_must_be_the_same(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with attached(model, slots=3, capacity=60, max_rows=20, graphs=True, deterministic=True) as engine:
        (one,) = timed(engine, SLOW_FOR_ONE, monkeypatch)
    assert all(rows == padded for rows, padded in one["padded_to"].items())


def test_no_memory_for_a_capture_is_said_with_the_way_out(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with attached(model, slots=3, capacity=60, max_rows=20, graphs=True) as engine:
        assert engine._graphs is not None

        def full(work: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr(engine._graphs, "capture", full)
        with pytest.raises(EnvironmentRefused, check=wording):
            engine.prepare(20)


def test_few_captures_cover_many_slots(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of kernels with two heights of tiles: at most 30 for 64 slots and 512 rows, and no step is late."""
    with attached(model, slots=64, capacity=60, max_rows=512, graphs=True) as engine:
        tuner = engine._tuner
        assert tuner is not None
        monkeypatch.setattr(engine.attentions, "tree", "triton")
        monkeypatch.setattr(engine.attentions, "chain", "triton")
        captured: set[Any] = set()

        def timed_(rows: int, widest: int, kind: Any, context: int) -> float:
            captured.add((rows, kind))
            return 1.0

        monkeypatch.setattr(tuner, "_time", timed_)
        for steps in engine.attentions.steps(512, 64):
            tuner.tune(steps, engine._eager.kind(steps.attention, steps.tall), 0)
        assert len(captured) <= 30
        rng = random.Random(0)
        for _ in range(200):
            counts = [rng.choice((1, 2, 5, 17, 200)) for _ in range(rng.randint(1, 64))]
            while sum(counts) > 512:
                counts.pop()
            trees = [TokenTree.chain([0] * count) for count in counts]
            attention, tall = engine.attentions.of(trees)
            assert (row_bucket(sum(counts)), engine._eager.kind(attention, tall)) in captured


def test_steps_of_the_largest_bucket_are_captured_and_larger_ones_are_not(model: Any) -> None:
    with attached(model, slots=2, capacity=20, max_rows=300, graphs=True) as engine:
        for _ in range(2):
            engine.prefill(engine.alloc(), [1, 2])
        engine.step({slot: TokenTree.chain([3] * 256) for slot in (0, 1)})
        assert engine.report()["graphs"] == 1
        engine.step({0: TokenTree.chain([3] * 257), 1: TokenTree.chain([3] * 256)})
        assert engine.report()["graphs"] == 1


def test_forced_tokens_decide_what_is_accepted_and_cost_the_same_work(captured: Engine) -> None:
    """Simulated acceptance: row 2 under row 1 is accepted, its sibling row 3 is not."""
    tree = TokenTree([4, 5, 6, 7], [-1, 0, 1, 1])
    slot = captured.alloc()
    captured.prefill(slot, [1, 2, 3])
    result = captured.step({slot: tree}, forced={slot: [5, 6, 90, COMPUTED]})[slot]
    assert (result.path, result.emitted) == ([0, 1, 2], [5, 6, 90])
    free = captured.step({slot: TokenTree([90, 5], [-1, 0])}, forced={slot: [COMPUTED, COMPUTED]})[slot]
    assert free.emitted == free.next_tokens[: len(free.emitted)]


def test_a_model_that_cannot_be_captured_is_stepped_eagerly_unless_graphs_were_asked_for() -> None:
    model = supported("mixtral")
    implementation = model.config._experts_implementation
    model.set_experts_implementation("eager")  # a loop over the experts that were hit, known on the host
    with attached(model, capacity=40, max_rows=16) as engine:
        expected = autoregressive(engine, [3, 4], 5)
    with attached(model, capacity=40, max_rows=16, graphs=True) as engine:
        with pytest.raises(CaptureFailed, check=wording):
            engine.prepare(1)
        engine._graphs_asked = False  # as by default on CUDA
        engine.prepare(1)
        report = engine.report()
        assert report["graphs"] is None
        assert wording(report["why_eager"])
        assert autoregressive(engine, [3, 4], 5) == expected
    model.set_experts_implementation(implementation)


def test_graphs_need_a_cuda_device(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(EnvironmentRefused, check=wording):
        Engine(model, capacity=20, graphs=True)
    assert model.config._attn_implementation != "specbench"


# ------------------------------------------------------------------ captures that fail


class Card:
    """A CUDA device as far as a capture knows it: work that reads the host raises where one would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mode: Any = 0
        self.capturing = self.begun = False
        names = ("graph_pool_handle", "Stream", "current_stream", "synchronize", "CUDAGraph")
        for name in names:
            monkeypatch.setattr(torch.cuda, name, lambda *given: MagicMock())
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        monkeypatch.setattr(torch.cuda, "graph", lambda *given, **more: self.graph())
        monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: self.mode)
        monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: setattr(self, "mode", mode))

    @contextmanager
    def graph(self) -> Iterator[None]:
        self.capturing = self.begun = True
        try:
            yield
        finally:
            self.capturing = False
            if sys.exc_info()[0]:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    def wait(self) -> None:
        if self.mode == "error" or self.capturing:
            raise RuntimeError("called a synchronizing CUDA operation\nand much more")


def test_a_wait_for_the_device_is_found_before_a_capture_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(monkeypatch)
    with pytest.raises(CaptureFailed, check=wording):
        cuda_capture(torch.device("cuda"))(card.wait)
    assert not card.begun, "a broken capture would leave the allocator unusable for eager steps"
    assert card.mode == 0


def test_what_broke_a_capture_is_named_and_memory_is_no_such_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(monkeypatch)

    def work(error: type[RuntimeError]) -> None:
        if card.capturing:
            raise error("this very operation")

    capture = cuda_capture(torch.device("cuda"))
    with pytest.raises(CaptureFailed, check=wording):
        capture(lambda: work(RuntimeError))
    card.capturing = True  # from its first warm-up on
    with pytest.raises(torch.OutOfMemoryError, check=wording):
        capture(lambda: work(torch.OutOfMemoryError))


@pytest.mark.parametrize("before", [True, False])
def test_the_collector_never_runs_in_a_capture(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    Card(monkeypatch)
    seen: list[bool] = []
    was = gc.isenabled()
    (gc.enable if before else gc.disable)()
    try:
        cuda_capture(torch.device("cuda"))(lambda: seen.append(gc.isenabled()))
        assert gc.isenabled() is before
    finally:
        (gc.enable if was else gc.disable)()
    assert seen == [False] * 3  # twice before the capture, and in it
