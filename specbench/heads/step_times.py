"""Time a head's rounds, for trees whose size is chosen by the time of a whole step."""

from __future__ import annotations

import time
from statistics import median

from specbench.decoding import BUILDERS, Target
from specbench.heads.head_rounds import HeadRounds

_TIMED = 5
_CONTEXT = 512  # length of the text after which a round is timed, if the capacity allows it


def step_seconds(rounds: HeadRounds, target: Target, name: str, budget: int) -> dict[int, float]:
    """Return rows -> seconds of a whole step: the target's forward, the head's round, and building its tree.

    ``rounds`` draft marginals, whose cost is the same for a tree of any size; ``name``: what the measured time is
    stored under, together with budget and context.
    """
    context = min(_CONTEXT, target.capacity)
    drafting = target.measured(
        f"{name}, budget {budget}, after {context} tokens", lambda: draft_seconds(rounds, budget, context)
    )
    return {rows: step + drafting for rows, step in target.step_seconds(budget)}


def draft_seconds(rounds: HeadRounds, budget: int, context: int) -> float:
    """Median time of a round and of building its tree, for one text with ``context`` features. Needs a free slot."""
    slot = rounds.open()
    taken = []
    features = next(rounds.head.parameters()).new_zeros(max(1, context - _TIMED), rounds.head.features)
    try:
        # The text grows by a token each time. The median ignores the first round, which waits for a whole prompt.
        rounds.append(slot, [0] * len(features), features)
        for _ in range(_TIMED):
            started = time.perf_counter()
            BUILDERS["optimal"](rounds.marginals(slot), budget)
            taken.append(time.perf_counter() - started)
            rounds.append(slot, [0], features[:1])
    finally:
        rounds.close(slot)
    return median(taken)
