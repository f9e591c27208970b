"""The GPU's peak memory: reset before a stretch, read off the clock, the largest of a method in its summary."""

from __future__ import annotations

import pytest
import torch
from support.decoders import Clock, ToyEngine, config, request, runner, toy

from specbench.analysis import figures
from specbench.analysis.summary import RunContents, summarise
from specbench.runner.session import PeakMemory, peak_memory


class Grows:
    """An allocator that holds ten bytes more at each look, and takes an hour for it."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.held, self.result = clock, 0, list[str]()

    def reset(self) -> None:
        self.clock.now += 3_600_000_000_000
        self.held = 100
        self.result.append("reset")

    def peak(self) -> int:
        self.clock.now += 3_600_000_000_000
        self.held += 10
        self.result.append("peak")
        return self.held


def test_it_is_the_stretchs_own_and_costs_no_time() -> None:
    clock, other = Clock(), Clock()
    memory = Grows(clock)
    measured = runner(ToyEngine(clock, slots=2, fixed=1_000_000_000), 2, memory=memory)
    plain = runner(ToyEngine(other, slots=2, fixed=1_000_000_000), 2)
    asked = [request(number, 6) for number in range(3)]
    for number in range(2):  # the second stretch begins anew
        found, without = (list(one.segment(toy(label="ar"), asked, number)) for one in (measured, plain))
        assert [record.peak_memory_bytes for record in found] == [110, 120, 130]
        assert [record.peak_memory_bytes for record in without] == [None] * 3
        times = ("start_s", "ttft_s", "decode_s", "latency_s", "prefill_share_s", "decode_share_s")
        assert [[getattr(r, name) for name in times] for r in found] == [
            [getattr(r, name) for name in times] for r in without
        ]
    assert memory.result == 2 * ["reset", "peak", "peak", "peak"]
    summary = summarise(RunContents(config(["ar"], 3), found))
    assert summary.rows[0].peak_memory_bytes == 130
    assert figures.method_figures(without).peak_memory_bytes is None


def test_a_cpu_has_none_and_a_gpu_asks_torchs_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peak_memory(torch.device("cpu")) is None
    asked: list[tuple[str, torch.device]] = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: asked.append(("reset", device)))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: len(asked) if device == asked[0][1] else 0)
    device = torch.device("cuda", 1)
    memory = peak_memory(device)
    assert isinstance(memory, PeakMemory)
    memory.reset()
    assert memory.peak() == 1
    assert asked == [("reset", device)]
