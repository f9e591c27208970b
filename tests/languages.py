"""A made-up language, and a tiny model that has learnt to speak it: what training recipes are tried on in seconds.

Each token has one successor. A prompt is some words and a key, and the answer goes on from the key: who reads the token
before needs one step of the successor, who reads the key needs as many as there are tokens between.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from models_tiny import tiny_llama
from torch.nn.functional import cross_entropy

from specbench.training.recipe import Text

VOCAB, ANSWER, KEYS = 40, 20, 6
_PROMPT, _WORDS = 2, 10


def texts(count: int, seed: int = 0) -> list[Text]:
    """Prompts with the answers that the language has to them."""
    draw = random.Random(seed)
    successor = _successor()
    found = []
    for number in range(count):
        words = [draw.randrange(_WORDS) for _ in range(_PROMPT)]
        answer, token = [], 3 * draw.randrange(KEYS)
        prompt = [*words, token]
        for _ in range(ANSWER):
            token = successor[token]
            answer.append(token)
        found.append(Text(f"language/{number}", prompt, answer))
    return found


def _successor() -> list[int]:
    order = list(range(VOCAB))
    random.Random(7).shuffle(order)
    after = dict(zip(order, [*order[1:], order[0]], strict=True))
    return [after[token] for token in range(VOCAB)]


def speaker(steps: int = 150) -> Any:
    """A tiny model that says what the language says, learnt token by token as every language model is."""
    model = tiny_llama(VOCAB, hidden_size=64, intermediate_size=128, head_dim=16, initializer_range=0.05)
    model.requires_grad_(True)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for step in range(steps):
            ids = torch.tensor([[*text.prompt, *text.answer] for text in texts(16, seed=1000 + step)])
            scores = model(ids).logits[:, _PROMPT:-1]
            loss = cross_entropy(scores.flatten(0, 1), ids[:, _PROMPT + 1 :].flatten())
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
    return model.requires_grad_(False)
