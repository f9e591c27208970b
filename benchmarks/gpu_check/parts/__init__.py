"""Parts: what the check measures, a file each: functions of a bench that yield figures as they are taken."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from benchmarks.gpu_check.records import Figure

T = TypeVar("T")


def each(items: Iterable[T], work: Callable[[T], Iterable[Figure]]) -> Iterator[Figure]:
    """The figures of every item; one that fails does not keep the others from being measured.

    Raises:
        Exception: what the first of those that failed raised, once all are through.
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
