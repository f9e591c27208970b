"""Choose the prompts of ``--limit N``: the first N of one random permutation of all prompts of a task.

Data files are often sorted by category, so their first N prompts are not representative. The permutation has its own
seed, and a larger N extends a smaller one.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol, TypeVar

from specbench.common import UsageError


class Item(Protocol):
    """An item that can be sampled: a prompt, or a training text (which has no category)."""

    @property
    def id(self) -> str: ...


ItemT = TypeVar("ItemT", bound=Item)


def permutation(items: Sequence[ItemT], seed: int | None) -> list[ItemT]:
    """All items in the order in which a growing limit adds them.

    The first n and the last n items contain n times each category's share of the whole, rounded down or up. An item's
    place depends only on seed, ids and categories.

    Args:
        items: with distinct ids; their ``category``, if any, is a stratum.
        seed: None keeps the order of the data.
    """
    if seed is None:
        return list(items)
    strata: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for at, item in enumerate(items):
        # Not `random`, whose shuffle may change with Python's version, and not `hash`, which changes with the process.
        lot = hashlib.sha256(json.dumps([seed, item.id]).encode()).hexdigest()
        strata[getattr(item, "category", "")].append((lot, at))
    # The j-th item of a stratum of `size` among `total` has a window of places. Before it, the stratum would have more
    # than its share rounded up; after it, less than its share rounded down. An order with every item in its window
    # exists for any sizes (Balinski and Young's quota method makes one); taking the earliest end first finds it.
    total = len(items)
    windows: dict[int, list[tuple[int, str, int]]] = defaultdict(list)
    for members in strata.values():
        size = len(members)
        for rank, (lot, at) in enumerate(sorted(members)):
            opens, closes = rank * total // size, -(-(rank + 1) * total // size)
            windows[opens].append((closes, lot, at))
    order: list[ItemT] = []
    waiting: list[tuple[int, str, int]] = []
    for place in range(total):
        for window in windows[place]:
            heapq.heappush(waiting, window)
        order.append(items[heapq.heappop(waiting)[-1]])
    return order


def draw_prompts(items: Sequence[ItemT], limit: int | None, seed: int | None) -> list[ItemT]:
    """The first ``limit`` of the permutation, in the order of the data, so that equal sets are equal runs."""
    if limit is None or limit >= len(items):
        return list(items)
    taken = {item.id for item in permutation(items, seed)[:limit]}
    return [item for item in items if item.id in taken]


def draw_from_each(
    items: Sequence[ItemT], limit: int | None, held_out: int, seed: int | None
) -> tuple[list[ItemT], list[ItemT]]:
    """(prompts for choosing a setting, held-out prompts for judging the choice), both in the order of use.

    The first are the prompts of a run with this limit. The held-out prompts come from the end of the permutation, so a
    larger limit does not change them, and a larger ``held_out`` adds to them.
    """
    count = len(items) - held_out if limit is None else limit
    if count < 1 or count + held_out > len(items):
        raise UsageError(
            f"cannot hold out {held_out} of {len(items)} prompts: at least {max(count, 1)} must be left to choose by; "
            "lower --limit or --held-out"
        )
    order = permutation(items, seed)
    return order[:count], order[::-1][:held_out]


def describe_draw(limit: int, seed: int | None) -> str:
    """Describe which texts of several sets a limit took, for the record."""
    return f"first {limit} of each set" if seed is None else f"{limit} of each set, sampled with seed {seed}"
