"""Which texts a step learns from: all once a visit, in another order each, batches of about one length."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specbench.training.loop.order import Order


def order_of(sizes: Sequence[int], batch: int, seed: int) -> Order:
    from specbench.training.loop.order import Order  # and with it transformers' Trainer, PEFT and datasets

    return Order(sizes, batch=batch, seed=seed)


def lengths(count: int) -> list[int]:
    draw = random.Random(3)
    return [draw.randrange(10, 500) for _ in range(count)]


def test_a_visit_meets_every_text_once_and_visits_differ() -> None:
    order = order_of(lengths(203), batch=4, seed=1)
    first, second = order.of(0), order.of(1)
    assert sorted(first) == sorted(second) == list(range(203))
    assert first != second
    assert first == order_of(lengths(203), batch=4, seed=1).of(0)
    assert first != order_of(lengths(203), batch=4, seed=2).of(0)


def test_the_loop_gets_the_visit() -> None:
    order = order_of(lengths(9), batch=2, seed=1)
    order.set_epoch(5)
    assert list(order) == [(5, index) for index in order.of(5)]
    assert len(order) == 9
    shuffled = order_of(lengths(50), batch=1, seed=0).of(0)  # one at a time
    assert sorted(shuffled) == list(range(50)) != shuffled


def test_neighbours_in_a_batch_are_of_one_length() -> None:
    sizes = lengths(400)

    def filling(order: list[int]) -> int:
        batches = [[sizes[index] for index in order[at : at + 8]] for at in range(0, len(order), 8)]
        return sum(max(batch) * len(batch) - sum(batch) for batch in batches)

    together = filling(order_of(sizes, batch=8, seed=0).of(0))
    assert together < 0.2 * filling(random.Random(0).sample(range(400), 400))
