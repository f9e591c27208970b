"""Trees over the marginals that a head's round drafts; ``auto`` sizes them by the time of a whole step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median

from specbench.decoding import BUILDERS, Knobs, Target, TokenTree
from specbench.heads.head_rounds import HeadRounds

_TIMED = 5
_CONTEXT = 512  # length of the texts after which a round is timed, if the capacity allows it
_LONG = 4  # a capacity of so many times that length is timed too, for long texts


def marginal_trees(
    rounds: HeadRounds, target: Target, name: str, tree: str, budget: int, knobs: Knobs
) -> Callable[[int], TokenTree]:
    """Return slot -> the tree that the builder ``tree`` makes of the slot's marginals.

    ``auto`` chooses the number of rows by the seconds of a whole step: the target's forward over the trees of all
    sequences of the run, the head's round, and building the trees. They are measured after two lengths if texts may
    become long, and the nearer one counts.

    ``name``: what measured times are stored under, together with budget and context.
    """
    build = BUILDERS[tree]
    if tree != "auto":
        return lambda slot: build(rounds.marginals(slot), budget, knobs)
    contexts = [min(_CONTEXT, target.capacity)]
    if target.capacity >= _LONG * _CONTEXT:
        contexts.append(target.capacity)
    timed = {
        context: replace(knobs, step_seconds=step_seconds(rounds, target, name, budget, context))
        for context in contexts
    }

    def sized(slot: int) -> TokenTree:
        length = max(1, rounds.length(slot))
        nearest = min(contexts, key=lambda context: abs(math.log(context / length)))
        return build(rounds.marginals(slot), budget, timed[nearest])

    return sized


def step_seconds(rounds: HeadRounds, target: Target, name: str, budget: int, context: int) -> Mapping[int, float]:
    """Return rows of each tree -> seconds of a whole step after ``context`` tokens."""
    count = f" of {target.slots} sequences" if target.slots > 1 else ""
    drafting = target.measured(
        f"{name}, budget {budget}{count}, after {context} tokens",
        lambda: draft_seconds(rounds, target.slots, budget, context),
    )
    longer = context if context > _CONTEXT else 0
    return {rows: step + drafting for rows, step in target.step_seconds(budget, longer)}


def draft_seconds(rounds: HeadRounds, sequences: int, budget: int, context: int) -> float:
    """Median time of a round and of building its trees, for texts with ``context`` features. Needs free slots."""
    slots = [rounds.open() for _ in range(sequences)]
    taken = []
    features = next(rounds.head.parameters()).new_zeros(max(1, context - _TIMED), rounds.head.features)
    try:
        # The texts grow by a token each time. The median ignores the first round, which waits for whole prompts.
        for slot in slots:
            rounds.append(slot, [0] * len(features), features)
        for _ in range(_TIMED):
            started = time.perf_counter()
            for slot in slots:
                BUILDERS["optimal"](rounds.marginals(slot), budget)
            taken.append(time.perf_counter() - started)
            for slot in slots:
                rounds.append(slot, [0], features[:1])
    finally:
        for slot in slots:
            rounds.close(slot)
    return median(taken)
