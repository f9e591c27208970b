"""Faults of methods that fill masked blocks; each test fails at the commit that it was written on."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from support import decoders
from support.models import attached, prompt, supported, tiny_llama

from benchmarks.gpu_check.recorder import recorded_capture
from specbench.common.errors import UsageError
from specbench.decoding.block_decoder import FillOptions, mask_of
from specbench.decoding.fill import Fill
from specbench.decoding.protocol import Context
from specbench.engine import graphs
from specbench.runner import Runner
from specbench.runner.record import Request
from specbench.runner.session import _cells
from specbench.runner.stop import StopRule


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
    with attached(supported("llama"), capacity=length + budget, max_rows=_cells(method)) as engine:
        (record,) = Runner(engine, context(budget)).segment(decoders.ready(method, engine), requests((length,), budget))
    assert record.output_tokens == budget


@pytest.mark.parametrize("name", ["fast-dllm", "sdar", "dllm", "d2f"])
def test_shares_of_time_add_up_to_the_clock(name: str) -> None:
    method = decoders.with_options(name, {"n": 8})
    tick = itertools.count(step=1000)
    with attached(supported("llama"), slots=3, capacity=96, max_rows=256) as engine:
        runner = Runner(engine, context(21), 3, clock=lambda: next(tick))
        found = list(runner.segment(decoders.ready(method, engine), requests((1, 8, 19), 21)))
    wall = max(each.start_s + each.latency_s for each in found) - min(each.start_s for each in found)
    assert sum(each.prefill_share_s + each.decode_share_s for each in found) <= wall * 1.001


def test_a_pass_that_runs_alone_has_its_phases() -> None:
    method = decoders.with_options("d2f", {"n": 2, "block_add_threshold": 0.0, "decoded_token_threshold": 1.0})
    with attached(supported("llama"), capacity=96, max_rows=8) as engine:
        runner = Runner(engine, context(40), trace=True)
        (record,) = runner.segment(decoders.ready(method, engine), requests((8,), 40))
    assert record.phases_s is not None
    assert min(record.phases_s["forward"]) > 0


def test_a_mask_token_outside_the_model_is_refused() -> None:
    class Target:
        model = tiny_llama(64)

        def mask_token(self) -> int:
            return 64  # of a tokenizer that was extended without the embedding

    with pytest.raises(UsageError):
        mask_of(FillOptions(), Target())  # type: ignore[arg-type]


def test_a_captured_pass_copies_nothing_from_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    made = torch.tensor

    def strict(*args: Any, device: Any = None, **options: Any) -> Any:
        assert device is None, "torch.tensor(..., device=) waits for the device, so this step cannot be captured"
        return made(*args, **options)

    monkeypatch.setattr(graphs, "cuda_capture", recorded_capture)
    with attached(supported("llama"), capacity=32, max_rows=8, backend="triton", native=False, graphs=True) as engine:
        slot = engine.alloc()
        monkeypatch.setattr("specbench.engine.program.torch.tensor", strict)
        engine.fill({slot: Fill([1, 2], [0, 1], 0, [2, 2], never=5)})
