"""Token Recycling by hand: what a forward teaches, the tree that is filled with it, and what is cut off a tree."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support.processes import bytes_taken, lines_run

from specbench.decoding.protocol import Context
from specbench.decoding.tree import StepResult, TokenTree
from specbench.methods.recycling.decoder import Decoder, Options
from specbench.methods.recycling.trees import CANDIDATES
from specbench.planning.methods import plan_methods

#: Token t of these examples has the candidates 10 t, 10 t + 1, …; 7 stands for all that was never fed.
BEST = {token: [10 * token + rank for rank in range(CANDIDATES)] for token in range(100)}


def decided(emitted: Sequence[int], best: Sequence[Sequence[int]], path: Sequence[int] = (0,)) -> StepResult:
    """A forward whose rows have these best tokens; they come with two more than the method takes."""
    ids = torch.tensor([[*row, 98, 99] for row in best])
    return StepResult(list(emitted), list(path), [row[0] for row in best], (torch.zeros(ids.shape), ids))


def decoder(prompt: Sequence[int], first: int, state: Any = None, **options: Any) -> Decoder:
    """After the prefill, which taught what follows the prompt's last token."""
    made = Decoder(Options(**options), Context(1000, 0, random.Random(0), state=state))
    made.begin(prompt)
    made.observe(decided([first], [BEST[prompt[-1]]]))
    return made


def shape(tree: TokenTree) -> tuple[list[int], list[int]]:
    return list(tree.tokens), list(tree.parents)


# ------------------------------------------------------------------ by hand


def test_a_warm_row_keeps_what_requests_have_taught_and_a_cold_one_does_not() -> None:
    state = Decoder.state(Options(warm=True))
    decoder([3], 5, state, warm=True).end()
    assert shape(decoder([4], 3, state, warm=True, tree="0").draft()) == ([3, 30], [-1, 0])
    assert shape(decoder([4], 3, tree="0").draft()) == ([3], [-1])
    assert Decoder.state(Options()) is None
    assert Decoder.state(Options(warm=True)) == {}


# ------------------------------------------------------------------ trees


# ------------------------------------------------------------------ what it says


def test_the_preset_is_the_released_code() -> None:
    released, default = (plan_methods(["recycling"], settings)[1] for settings in (["preset=released"], []))
    assert released.options == Options(tree="2.2.2", budget=81, warm=True, unknown="zero")
    assert (released.max_rows, default.max_rows, released.top_k) == (81, 81, 8)
    assert (released.stateful, default.stateful) == (True, False)


# ------------------------------------------------------------------ how it grows


@pytest.mark.parametrize("unknown", ["skip", "zero"])
def test_it_keeps_a_line_a_token_and_a_step_is_no_more_work_later(unknown: Any) -> None:
    rng = random.Random(1)
    made = decoder([1], 2, unknown=unknown, budget=20)

    def steps(count: int) -> None:
        for _ in range(count):
            tree = made.draft()
            best = [[rng.randrange(50) for _ in range(CANDIDATES)] for _ in range(len(tree))]
            made.observe(decided([rng.randrange(50)], best))

    steps(100)  # all 50 tokens are known
    early = lines_run("methods.recycling", lambda: steps(30))
    steps(300)
    assert len(made._matrix) == 50
    assert lines_run("methods.recycling", lambda: steps(30)) < 1.2 * early
    assert bytes_taken(made.draft) < 20_000
