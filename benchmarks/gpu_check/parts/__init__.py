"""The measurements of the check, one file per part: functions that take a bench and yield figures."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from benchmarks.gpu_check.records import Figure

T = TypeVar("T")


def each(items: Iterable[T], work: Callable[[T], Iterable[Figure]]) -> Iterator[Figure]:
    """Yield the figures of every item; if one fails, the others are still measured.

    Raises:
        Exception: the first error, after all items.
    """
    first: Exception | None = None
    for item in items:
        try:
            yield from work(item)
        except Exception as error:
            traceback.print_exc()
            first = first or error
    if first is not None:
        raise first
