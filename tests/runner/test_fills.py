"""Methods that fill masked blocks in the runner: what is counted, and that sequences do not affect each other."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import decoders, diffusion_oracles
from support.models import attached, prompt, supported, tiny_llama

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.common import heartbeat
from specbench.common.errors import PluginFault, UsageError
from specbench.decoding.fill import Fill
from specbench.decoding.protocol import Context, Method
from specbench.engine import graphs
from specbench.engine.engine import Engine
from specbench.planning.plan import Plan
from specbench.planning.resolving import resolve
from specbench.report.answers.generation import steps
from specbench.results.request_schema import RequestRecord
from specbench.runner import Runner
from specbench.runner.record import Request
from specbench.runner.session import _cells
from specbench.runner.stop import StopRule

MASK = 5
FILLS = {key: method for key, method in decoders.ALL.items() if method.fills}
every_method = pytest.mark.parametrize("method", FILLS.values(), ids=FILLS)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with attached(supported("llama"), slots=3, capacity=96, max_rows=256) as made:
        yield made


def decode(
    engine: Engine, method: Method, together: int, budget: int = 21, stops: Sequence[int] = (), trace: bool = False
) -> dict[str, RequestRecord]:
    rule = StopRule(frozenset(stops), (), budget, str)
    requests = [Request(f"p{length}", 0, prompt(length, 97, seed=length), rule) for length in (1, 8, 19)]

    def context(label: str, request: Request) -> Context:
        return Context(97, 96, random.Random(0), budget=budget, stops=frozenset(stops))

    runner = Runner(engine, context, together, trace=trace)
    return {record.prompt_id: record for record in runner.segment(decoders.ready(method, engine), requests)}


@every_method
def test_sequences_decoded_together_are_the_same(engine: Engine, method: Method) -> None:
    alone, together = decode(engine, method, 1), decode(engine, method, 3)
    assert {name: record.output_ids for name, record in alone.items()} == {
        name: record.output_ids for name, record in together.items()
    }


@every_method
def test_every_token_and_forward_is_counted_once(engine: Engine, method: Method) -> None:
    for record in decode(engine, method, 2, trace=True).values():
        assert record.output_tokens == record.first_tokens + sum(record.accepted_lengths) == 21
        assert MASK not in record.output_ids
        assert record.draft_tokens == 0
        assert [len(step.tokens) for step in steps(record)] == [record.first_tokens, *record.accepted_lengths]
        # A prompt shorter than a block is read by the first pass over it.
        passes = record.measures["passes"] * record.output_tokens
        assert passes == pytest.approx(round(passes))
        assert round(passes) - record.target_forwards in (0, 1)
        assert record.ttft_s + record.decode_s >= record.latency_s - 1e-9
        assert record.phases_s is not None
        assert all(len(each) == record.target_forwards for each in record.phases_s.values())


def test_passes_over_the_whole_text_fit_a_full_cache() -> None:
    method = decoders.with_options("dllm", {"n": 4, "cache": "prefix"})
    with attached(supported("qwen2"), capacity=19 + 21, max_rows=2 * method.max_rows) as engine:
        assert decode(engine, method, 1)["p19"].output_tokens == 21


def test_an_answer_ends_at_its_stop_token(engine: Engine) -> None:
    method = decoders.with_options("fast-dllm", {"n": 4})
    whole = decode(engine, method, 1)["p19"].output_ids
    stop = whole[9]
    record = decode(engine, method, 1, stops=[stop])["p19"]
    assert record.output_ids == whole[: whole.index(stop) + 1]
    assert record.finish_reason == "stop"


def test_counts_are_those_of_the_dense_decoder(engine: Engine) -> None:
    method = decoders.with_options("sdar", {"block_size": 4, "threshold": 0.2})
    record = decode(engine, method, 1)["p19"]
    trace = diffusion_oracles.sdar(
        supported("llama"), prompt(19, 97, seed=19), mask=MASK, threshold=0.2, max_new_tokens=21, forbid_mask=True
    )
    assert record.output_ids == trace.tokens
    known, final = set(range(19)), [19]  # the position after the last final token
    for made in trace.passes:
        known |= {at for at, _ in made}
        final.append(next(at for at in range(final[-1], 10**6) if at not in known))
    kept = [min(end, 40) - 19 for end in final]
    assert record.first_tokens == 0
    last = kept.index(21)
    assert record.accepted_lengths == [b - a for a, b in itertools.pairwise(kept[: last + 1])]
    assert record.measures["passes"] == pytest.approx(last / 21)


@pytest.mark.parametrize("wrong", [lambda: None, lambda: Fill([10**6], [0], 0, [1])])
def test_a_faulty_pass_is_the_methods_fault(engine: Engine, wrong: Callable[[], Any]) -> None:
    class Faulty(FILLS["sdar"].decoder):  # type: ignore[misc]
        def fill(self) -> Any:
            return wrong()

    method = Method("sdar", "sdar", FILLS["sdar"].options, False, Faulty, shared=MASK)
    rule = StopRule(frozenset(), (), 8, str)
    runner = Runner(engine, lambda label, request: Context(97, 96, random.Random(0)))
    with pytest.raises(PluginFault):
        list(runner.segment(method, [Request("p", 0, prompt(9, 97), rule)]))


@pytest.mark.parametrize(("method", "calls"), [("jacobi", {"prefill", "step"}), ("d2f", {"fill"})])
def test_the_supervisor_sees_a_forward_as_the_engines(
    engine: Engine, method: str, calls: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()

    def watched(call: str, own: Callable[..., Any], *given: Any, **more: Any) -> Any:
        seen.add((call, heartbeat.SHARED[heartbeat.AT]))
        return own(*given, **more)

    for call in ("prefill", "fill", "step"):
        monkeypatch.setattr(engine, call, partial(watched, call, getattr(engine, call)))
    decode(engine, decoders.ALL[method], 1)
    assert seen == {(call, heartbeat.Activity.FORWARD) for call in calls}


def test_a_decoder_that_fills_nothing_is_stopped() -> None:
    class Idle(FILLS["sdar"].decoder):  # type: ignore[misc]
        def unmask(self, predicted: Any) -> None: ...

    method = Method("sdar", "sdar", FILLS["sdar"].options, False, Idle, shared=MASK)
    rule = StopRule(frozenset(), (), 8, str)
    with attached(supported("qwen2"), capacity=64, max_rows=16) as engine:
        runner = Runner(engine, lambda label, request: Context(97, 96, random.Random(0)))
        with pytest.raises(PluginFault, match="no token"):
            list(runner.segment(method, [Request("p", 0, prompt(9, 97), rule)]))


@pytest.mark.parametrize("flags", [{"keep_prefix": True}, {"presence_penalty": 1.0}, {"simulate": ["sdar=2"]}])
def test_unsupported_flags_are_refused(flags: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="sdar"):
        resolve(Plan(method="ar,sdar", **flags))


def requests(lengths: tuple[int, ...], budget: int) -> list[Request]:
    return [
        Request(f"p{length}", 0, prompt(length, 97, seed=length), StopRule(frozenset(), (), budget, str))
        for length in lengths
    ]


def context(budget: int) -> Any:
    return lambda label, request: Context(97, 96, random.Random(0), budget=budget)


@pytest.mark.parametrize(("name", "options"), [("dllm", {"n": 4}), ("d2f", {"n": 4})])
def test_a_prompt_longer_than_the_rows_is_read(name: str, options: dict[str, Any]) -> None:
    method, length, budget = decoders.with_options(name, options), 60, 8
    with attached(supported("qwen3"), capacity=length + budget, max_rows=_cells(method)) as engine:
        (record,) = Runner(engine, context(budget)).segment(decoders.ready(method, engine), requests((length,), budget))
    assert record.output_tokens == budget


@pytest.mark.parametrize("name", ["fast-dllm", "sdar", "dllm", "d2f"])
def test_shares_of_time_add_up_to_the_clock(name: str) -> None:
    method = decoders.with_options(name, {"n": 8})
    tick = itertools.count(step=1000)
    with attached(supported("qwen3"), slots=3, capacity=96, max_rows=256) as engine:
        runner = Runner(engine, context(21), 3, clock=lambda: next(tick))
        found = list(runner.segment(decoders.ready(method, engine), requests((1, 8, 19), 21)))
    wall = max(each.start_s + each.latency_s for each in found) - min(each.start_s for each in found)
    assert sum(each.prefill_share_s + each.decode_share_s for each in found) <= wall * 1.001


def test_a_pass_that_runs_alone_has_its_phases() -> None:
    method = decoders.with_options("d2f", {"n": 2, "block_add_threshold": 0.0, "decoded_token_threshold": 1.0})
    with attached(supported("qwen3"), capacity=96, max_rows=8) as engine:
        runner = Runner(engine, context(40), trace=True)
        (record,) = runner.segment(decoders.ready(method, engine), requests((8,), 40))
    assert record.phases_s is not None
    assert min(record.phases_s["forward"]) > 0


@pytest.mark.parametrize("mask", [-1, 64, 7])
def test_a_mask_token_that_cannot_mask_is_refused(mask: int) -> None:
    model = replace(decoders.loaded(tiny_llama(64)), stop_ids=frozenset({7}))
    assert model.mask_token(63) == 63
    with pytest.raises(UsageError):
        model.mask_token(mask)
    with pytest.raises(UsageError):
        replace(model, tokenizer=SimpleNamespace(mask_token_id=mask)).mask_token()


def test_a_captured_pass_copies_nothing_from_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    made = torch.tensor

    def strict(*args: Any, device: Any = None, **options: Any) -> Any:
        assert device is None, "torch.tensor(..., device=) waits for the device, so this step cannot be captured"
        return made(*args, **options)

    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)
    with attached(supported("qwen3"), capacity=32, max_rows=8, backend="triton", native=False, graphs=True) as engine:
        slot = engine.alloc()
        monkeypatch.setattr("specbench.engine.program.torch.tensor", strict)
        engine.fill({slot: Fill([1, 2], [0, 1], 0, [2, 2], never=5)})
