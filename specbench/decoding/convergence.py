"""Compute the two figures of CLLM's Table 3 from the states of a block (Kou et al. 2024, §4.3 and Appendix).

A block's trajectory is its content after each forward, up to and including the first state that is the fixed point; the
forward that only confirms the fixed point adds no state.
"""

from __future__ import annotations

from collections.abc import Sequence

State = Sequence[int]


def settled(states: Sequence[State]) -> Sequence[State]:
    """Return ``states`` up to the first one that equals the last."""
    return states[: 1 + next(at for at, state in enumerate(states) if state == states[-1])]


def fast_forwarded(states: Sequence[State]) -> float:
    """Return the tokens by which a forward extends the correct prefix, on average over the block's states.

    The block's first token is known in advance and counts for the first state: plain autoregressive decoding of n
    tokens gives n / (n - 1).
    """
    return len(states[-1]) / len(states)


def stationary(states: Sequence[State]) -> int:
    """Return the number of tokens that were correct before the correct prefix reached them and never changed again."""
    final, count = states[-1], 0
    frontier = [prefix(state, final) for state in states]
    for at, token in enumerate(final):
        arrived = next(j for j, length in enumerate(frontier) if length > at)
        count += arrived > 0 and states[arrived - 1][at] == token
    return count


def prefix(state: State, final: State) -> int:
    """Return the length of a state's correct prefix."""
    return next((at for at, (a, b) in enumerate(zip(state, final, strict=True)) if a != b), len(final))
