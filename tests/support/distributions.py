"""Answers that decoders write in all slots of an engine, and what their tokens are drawn from."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from support.models import prompt
from torch import Tensor

from specbench.decoding.protocol import Context, Method
from specbench.engine.engine import Engine
from specbench.engine.sampler import Sampling, filtered


@torch.inference_mode()
def drawn_from(engine: Engine, text: Sequence[int], sampling: Sampling) -> Tensor:
    """float64 [tokens, V]: what the token after each of a text is drawn from, by the model without an engine."""
    with engine.detached():
        logits = engine.model(torch.tensor([text])).logits
    return filtered(logits, sampling)[0].double().softmax(-1)


def written(
    engine: Engine, method: Method, sampling: Sampling, tokens: int, vocab: int
) -> tuple[list[list[int]], list[list[int]], float]:
    """Prompts, one in each slot; the texts with at least ``tokens`` ids after the first; tokens per step."""
    engine.sampling = sampling
    slots = [engine.alloc() for _ in range(engine.slots)]
    prompts = [prompt(3 + (tokens + 6) * slot, vocab, seed=slot) for slot in slots]
    decoders = [method.new(Context(vocab, 0, random.Random(0))) for _ in slots]
    texts = [[*ids] for ids in prompts]
    for slot in slots:
        decoders[slot].begin(prompts[slot])
        result = engine.prefill(slot, prompts[slot], taps=method.taps)
        decoders[slot].observe(result)
        texts[slot] += result.emitted
    steps = brought = 0
    while waiting := [slot for slot in slots if len(texts[slot]) < len(prompts[slot]) + 1 + tokens]:
        trees = {slot: decoders[slot].draft() for slot in waiting}
        for slot, result in engine.step(trees, taps=method.taps).items():
            decoders[slot].observe(result)
            texts[slot] += result.emitted
            steps, brought = steps + 1, brought + len(result.emitted)
    for slot in slots:
        decoders[slot].end()
        engine.free(slot)
    return prompts, texts, brought / steps
