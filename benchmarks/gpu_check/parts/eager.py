"""Measure AR without CUDA graphs, and transformers' own loop, the baseline of many publications."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu_check import sessions
from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.records import Figure
from benchmarks.gpu_check.shapes import WANTED
from benchmarks.vs_generate import by_generate
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
    by_generate(loaded.model, prompt, 4)
    theirs = by_generate(loaded.model, prompt, size.tokens)
    each = 1e3 * theirs.seconds / theirs.tokens
    implementation = loaded.model.config._attn_implementation
    yield Figure("transformers generate, a token", each, "ms", note=f"{note}, {implementation}", shape=shape.name)
    if captured:
        yield Figure("generate over a captured AR step", each / captured, aim=">= 4", shape=shape.name, key="generate")
