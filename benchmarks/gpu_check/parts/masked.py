"""Measure passes over masked blocks: a diffusion model's step next to AR's step of the same weights."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu_check import sessions
from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.records import Figure
from benchmarks.gpu_check.shapes import WANTED
from specbench.planning.methods import plan_methods

#: The largest acceptable time of a pass of 32 rows, as a multiple of AR's step: see ``ROW_AIMS`` of steps.
_AIM = "<= 1.1"


def run(bench: Bench) -> Iterator[Figure]:
    """Time passes over blocks of 32 rows, and of their sub-blocks alone."""
    size = bench.size
    capacity = size.context + size.tokens + 32
    shape, loaded, left_out = sessions.model_of(bench, WANTED[0], capacity)
    yield from left_out
    if shape is None or loaded is None:
        return
    prompt, captured = sessions.prompt(loaded, size.context), bench.journal.find("ar_ms", shape.name)
    for cache, what in (("false", "32 rows"), ("true", "32 or 8 rows")):
        settings = ["fast-dllm.mask=5", f"fast-dllm.block_cache={cache}"]
        with sessions.session(bench, loaded, plan_methods(["fast-dllm"], settings), capacity=capacity) as opened:
            sessions.decode(opened, opened.methods[-1], [prompt], min(34, size.tokens))  # captures its graphs
            records = sessions.decode(opened, opened.methods[-1], [prompt], size.tokens)
            why = opened.engine.report().get("why_eager", "")
        each = 1e3 * sessions.seconds_a_step(records)
        note = f"{records[0].target_forwards} passes after {size.context} tokens, host included{f'; {why}' * bool(why)}"
        yield Figure(f"pass over a masked block, {what}", each, "ms", note=note, shape=shape.name)
        if captured:
            over = each / captured
            yield Figure(f"pass over a masked block, {what}, over AR's step", over, aim=_AIM, shape=shape.name)
