"""Texts that a model has written, and the Jacobi decoder on guesses that are given to it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from models_tiny import attached, autoregressive, prompt

from specbench.decoding.protocol import Context
from specbench.decoding.tree import TokenTree
from specbench.engine.engine import Engine
from specbench.methods.jacobi.decoder import Decoder, Options
from specbench.models.loader import LoadedModel
from specbench.training.recipe import Text
from specbench.training.trajectory import Trajectory


def answered(model: LoadedModel, lengths: Sequence[tuple[int, int]], **options: Any) -> list[Text]:
    """A model's answers to random prompts; ``lengths`` of (prompt, answer), ``options`` of the engine."""
    texts = []
    with attached(model.model, capacity=max(map(sum, lengths)), max_rows=8, **options) as engine:
        for number, (asked, tokens) in enumerate(lengths):
            ids = prompt(asked, model.vocab_size, seed=number)
            texts.append(Text(f"set/{number}", ids, autoregressive(engine, ids, tokens)))
    return texts


class _Given(random.Random):
    """Hands out guesses that are known, and nothing behind them."""

    def __init__(self, guesses: Sequence[Sequence[int]]) -> None:
        self._left = list(guesses)

    def choices(self, population: Any, *_: Any, k: int = 1, **__: Any) -> list[Any]:
        mine = list(self._left.pop(0)) if self._left else []
        return (mine + [0] * k)[:k]


def replayed(engine: Engine, trajectory: Trajectory) -> list[list[list[int]]]:
    """The states that ``jacobi`` goes through, block by block, when blocks begin as those of a trajectory do.

    Of the last block, what is behind the answer is left out.
    """
    n, end = trajectory.block_size, len(trajectory.answer)
    context = Context(1 << 30, 0, _Given([states[0][1:] for states in trajectory.blocks]))
    decoder = Decoder(Options(block_size=n, prefill_draft=False), context)
    decoder.begin(trajectory.prompt)
    slot = engine.alloc()
    result = engine.prefill(slot, trajectory.prompt)
    decoder.observe(result)
    out = list(result.emitted)
    blocks: list[list[list[int]]] = [[] for _ in trajectory.blocks]
    while len(out) <= end:
        tree: TokenTree = decoder.draft()
        block = (len(out) - 1) // n
        state = [*out[block * n : -1], *tree.tokens][: min(n, end - block * n)]
        if state not in blocks[block][-1:]:  # the forward that confirms a fixed point is no state
            blocks[block].append(state)
        result = engine.step({slot: tree})[slot]
        decoder.observe(result)
        out += result.emitted
    engine.free(slot)
    return blocks


def written(trajectory: Trajectory) -> list[list[list[int]]]:
    """The states of a trajectory without what fills its last block."""
    n, end = trajectory.block_size, len(trajectory.answer)
    return [[list(state[: end - block * n]) for state in states] for block, states in enumerate(trajectory.blocks)]
