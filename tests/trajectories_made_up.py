"""Trajectories to learn from, made up or of a model."""

from __future__ import annotations

import random

from specbench.training.trajectory import Trajectory


def made_up(
    name: str = "made/0", prompt: int = 5, answer: int = 11, block_size: int = 4, vocab: int = 50, states: int = 4
) -> Trajectory:
    """Random tokens; of each block the states converge from the left, one more random prefix each, the first token
    right from the start."""
    draw = random.Random(name)
    text = [draw.randrange(vocab) for _ in range(answer)]
    blocks = []
    for start in range(0, answer, block_size):
        fixed = [*text[start : start + block_size], *[0] * (start + block_size - answer)]
        right = sorted(draw.randrange(1, block_size) for _ in range(states - 1))
        noisy = [fixed[:at] + [draw.randrange(vocab) for _ in range(block_size - at)] for at in right]
        blocks.append([*noisy, fixed])
    return Trajectory(name, [draw.randrange(vocab) for _ in range(prompt)], text, block_size, 0, blocks)
