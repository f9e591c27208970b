"""Jacobi Forcing at the corners of its published sweep (Fig. 7a): block 8 to 256, 1 to 16 chains, K=2, r=0.85."""

from __future__ import annotations

from typing import Any

import pytest
from support import decoders, models

from specbench.planning.methods import plan_methods
from specbench.runner.record import Request
from specbench.runner.session import Session
from specbench.runner.stop import StopRule

VOCAB = 13  # few words recur at once, so that pools have candidates


def corner(n: int, pool: int, tokens: int) -> tuple[int, int]:
    """Rows that are announced, and those of the largest step, after the answers were held against plain decoding's."""
    model = decoders.loaded(models.tiny_llama(VOCAB, seed=3, num_hidden_layers=1), name="tiny")
    methods = plan_methods(["jf"], [f"n={n}", f"pool={pool}", "K=2", "r=0.85"])
    rule = StopRule(frozenset(), (), tokens, str)
    requests = [Request("p", 0, models.prompt(40, VOCAB), rule)]
    with Session(model, methods, capacity=40 + tokens) as session:
        stepped: list[int] = []
        step = session.engine.step

        def watched(trees: Any, **more: Any) -> Any:
            stepped.append(max(map(len, trees.values())))
            return step(trees, **more)

        session.engine.step = watched  # type: ignore[method-assign]
        plain, drafted = (
            [record.output_ids for record in session.decode(method, requests)] for method in session.methods
        )
    assert drafted == plain
    return methods[1].max_rows, max(stepped)


@pytest.mark.parametrize(("n", "pool", "rows"), [(8, 1, 16), (8, 16, 121), (128, 4, 637)])
def test_small_corners_and_the_published_knee_are_exact(n: int, pool: int, rows: int) -> None:
    announced, largest = corner(n, pool, 48)
    assert announced == rows
    assert n < largest <= rows  # a block ahead, or candidates


@pytest.mark.slow
@pytest.mark.parametrize(("n", "pool", "rows"), [(256, 1, 512), (256, 16, 4337)])
def test_large_corners_are_exact(n: int, pool: int, rows: int) -> None:
    announced, largest = corner(n, pool, 340)
    assert announced == rows
    assert rows / 4 < largest <= rows
