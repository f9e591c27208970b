"""Measure AR without CUDA graphs, and transformers' own loop, the baseline of many publications."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks.gpu_check import sessions
from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.records import Figure
from benchmarks.gpu_check.shapes import WANTED
from specbench.planning.methods import plan_methods


def run(bench: Bench) -> Iterator[Figure]:
    """Time AR's step launched kernel by kernel, and ``generate`` with the same weights."""
    size = bench.size
    capacity = size.context + size.tokens
    shape, loaded, left_out = sessions.model_of(bench, WANTED[0], capacity)
    yield from left_out
    if shape is None or loaded is None:
        return
    prompt = sessions.prompt(loaded, size.context)
    captured = bench.journal.find("ar_ms", shape.name)
    with sessions.session(bench, loaded, plan_methods(["ar"], []), capacity=capacity, graphs=False) as opened:
        sessions.decode(opened, opened.methods[0], [prompt], 4)  # warm-up: one-time allocations
        eager = 1e3 * sessions.seconds_a_step(sessions.decode(opened, opened.methods[0], [prompt], size.tokens))
    note = f"{size.tokens} tokens after {size.context}, host included"
    yield Figure("AR step with graphs off", eager, "ms", note=note, shape=shape.name)
    if captured:
        yield Figure("AR step with graphs off over captured", eager / captured, shape=shape.name)
    generate_seconds(loaded.model, prompt, 4)
    each = 1e3 * generate_seconds(loaded.model, prompt, size.tokens)
    implementation = loaded.model.config._attn_implementation
    yield Figure("transformers generate, a token", each, "ms", note=f"{note}, {implementation}", shape=shape.name)
    if captured:
        yield Figure("generate over a captured AR step", each / captured, aim=">= 4", shape=shape.name, key="generate")


class _Arrivals:
    """A streamer that records when ``generate`` hands over tokens, the prompt first."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def put(self, value: Any) -> None:
        self.seen.append(time.perf_counter())

    def end(self) -> None: ...


def generate_seconds(model: Any, ids: Sequence[int], tokens: int) -> float:
    """Seconds per token after the first with transformers' own loop and default cache."""
    arrivals = _Arrivals()
    prompt = torch.tensor([list(ids)], device=model.device)
    with torch.inference_mode():
        # Without a mask generate guesses one, and masks chat-template tokens that equal the pad token.
        mask = torch.ones_like(prompt)
        model.generate(prompt, attention_mask=mask, max_new_tokens=tokens, do_sample=False, streamer=arrivals)
    first, *later = arrivals.seen[1:]
    return (later[-1] - first) / len(later)
