"""The race against llama.cpp, as far as it can be looked at without one: order, prompts, sums."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.wording import wording

from benchmarks import vs_llama_cpp
from specbench.backends.protocol import Arrival, EngineCounters, Question
from specbench.common.errors import UsageError
from specbench.models.loader import load


def test_who_goes_first_alternates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vs_llama_cpp, "REST_S", 0)
    order: list[str] = []
    timed = {name: vs_llama_cpp.Timed([], 1.0, 1.0) for name in ("theirs", "ours")}

    def arm(name: str) -> vs_llama_cpp.Timed:
        order.append(name)
        return timed[name]

    arms = [partial(arm, name) for name in timed]
    for number in range(3):
        assert vs_llama_cpp.interleave(arms, number) == list(timed.values())
    assert order == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]


def test_prompts_have_exactly_the_length_and_begin_elsewhere(task_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECBENCH_DATA", str(task_data))
    loaded = load("config:tiny")
    prompts = vs_llama_cpp.prompts_of(loaded, 64, 3)
    assert [len(ids) for ids in prompts] == [64] * 3
    assert len({tuple(ids[:48]) for ids in prompts}) == 3
    with pytest.raises(UsageError, check=wording):
        vs_llama_cpp.prompts_of(loaded, 10**6, 1)


class Rival:
    """Answers as a server of the same weights does, with a token exchanged in its last answer."""

    def __init__(self, model: Any) -> None:
        self.answers = 0
        self._model = model

    @torch.inference_mode()
    def ask(self, question: Question) -> Iterator[Arrival]:
        ids, prompt = list(question.ids), len(question.ids)
        for _ in range(question.budget):
            ids.append(int(self._model(torch.tensor([ids])).logits[0, -1].argmax()))
        self.answers += 1
        if self.answers == 3:
            ids[prompt + 2] += 1
        yield from (Arrival(0, [token]) for token in ids[prompt:])

    def counters(self) -> EngineCounters:
        return EngineCounters(own={"predicted_ms": 1e3 * self.answers})


def test_a_race_says_who_is_faster_and_where_ids_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load("config:tiny", device="cpu")
    monkeypatch.setattr(vs_llama_cpp, "REST_S", 0)
    monkeypatch.setattr(vs_llama_cpp, "bandwidth", lambda threads: 1e9 * threads)
    prompts = {4: [[7] * 4, [8] * 4, [9] * 4]}
    monkeypatch.setattr(vs_llama_cpp, "prompts_of", lambda loaded, length, count: prompts[length][:count])
    args = SimpleNamespace(threads=[torch.get_num_threads()], contexts=[4], pairs=2, tokens=5, settings=[])
    rival: Any = Rival(load("config:tiny", device="cpu").model)
    result = vs_llama_cpp.race(loaded, lambda threads, capacity: nullcontext((rival, "1")), args)
    (cell,) = result["cells"]
    assert [pair["theirs_tok_s"] for pair in cell["pairs"]] == [4 / 2, 4 / 3]  # the first answer was to warm up
    assert cell["theirs_tok_s"] == pytest.approx((4 / 2 + 4 / 3) / 2)
    assert cell["ratio_min"] <= cell["ratio"] <= cell["ratio_max"]
    for pair in cell["pairs"]:
        assert pair["ratio"] == pair["ours_tok_s"] / pair["theirs_tok_s"]
    assert cell["bound_tok_s"] == 1e9 * args.threads[0] / loaded.spec.weight_bytes
    (found,) = cell["differences"]
    assert not cell["ids_equal"]
    assert (found["pair"], found["at"], found["theirs"]) == (2, 2, found["ours"] + 1)
    assert found["logits"][0] > found["logits"][1]
    args.tokens = 10**6
    with pytest.raises(UsageError, check=wording):
        vs_llama_cpp.race(loaded, lambda threads, capacity: nullcontext((rival, "1")), args)
