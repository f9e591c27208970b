"""Sample memory, handles and CPU time of a process that decodes many requests, and check that they do not grow.

Samples are taken after a finished request, when the runner's clock is stopped, so that they affect no measurement.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import psutil
from pydantic import BaseModel

from specbench.results import RequestRecord
from specbench.runner import run_plans
from specbench.runner.run_progress import RunProgress

#: Growth that is none, from the end of the first tenth to the end of the last: memory, and CPU time of a request.
MEMORY, SLOWER = 0.02, 0.10

TENTHS = 10


@dataclass(frozen=True)
class Sample:
    """What the process holds after some requests, and what they took.

    Attributes:
        requests: finished so far.
        resident: bytes of memory, garbage collected.
        records: bytes of the records that a run keeps of them for its summary.
        files: open descriptors.
        threads: of this process.
        children: processes below it.
        cpu_s: CPU seconds of all threads per request since the last sample.
    """

    requests: int
    resident: int
    records: int
    files: int
    threads: int
    children: int
    cpu_s: float


class Watch:
    """Take a sample after every ``every`` finished requests.

    Args:
        every: requests between two samples.
        say: called with a line for each sample.
    """

    def __init__(self, every: int, say: Callable[[str], None] = lambda line: None) -> None:
        self.samples: list[Sample] = []
        self._every, self._say = every, say
        self._process = psutil.Process()
        self._requests = self._records = 0
        self._since = time.process_time()

    def begin(self) -> None:
        """Everything is loaded and warm: what that took is no request's."""
        self._since = time.process_time()

    def request(self, record: RequestRecord) -> None:
        """Takes a finished request."""
        spent = time.process_time() - self._since
        aside = time.process_time()
        self._requests += 1
        self._records += size_of(record.untraced())
        if self._requests % self._every == 0:
            self.samples.append(self._sample(spent / self._every))
            self._say(describe(self.samples[-1]))
            self._since = time.process_time()
        else:  # do not count the time for measuring the record
            self._since += time.process_time() - aside

    def _sample(self, cpu_s: float) -> Sample:
        gc.collect()
        return Sample(
            requests=self._requests,
            resident=self._process.memory_info().rss,
            records=self._records,
            files=self._process.num_fds(),
            threads=self._process.num_threads(),
            children=len(self._process.children(recursive=True)),
            cpu_s=cpu_s,
        )


@contextmanager
def watched(every: int, say: Callable[[str], None] = lambda line: None) -> Iterator[Watch]:
    """Commands that are run in this process meanwhile are watched; their own progress goes on."""
    watch = Watch(every, say)

    class Watched(RunProgress):
        def ready(self, engine: Mapping[str, Any]) -> None:
            super().ready(engine)
            watch.begin()

        def request(self, record: RequestRecord) -> None:
            super().request(record)
            watch.request(record)

    with mock.patch.object(run_plans, "RunProgress", Watched):
        yield watch


def faults(samples: list[Sample]) -> list[str]:
    """What grew, a line each; none is right.

    The first tenth is warm-up for memory and handles, which then have to stay; a request's CPU time is compared between
    the first tenth and the last, by the medians of their samples, so a slow first sample counts for nothing.

    Args:
        samples: at least one for each tenth, equally far apart.
    """
    each = len(samples) // TENTHS
    assert each, f"{len(samples)} samples are too few"
    first, last = samples[each - 1], samples[-1]
    found = []
    grown, records = last.resident - first.resident, last.records - first.records
    if grown - records > MEMORY * first.resident:
        found.append(
            f"memory: {_mb(grown)} MB more than the {_mb(first.resident)} MB of the first tenth, of which records "
            f"{_mb(records)} MB"
        )
    for name in ("files", "threads", "children"):
        before, after = getattr(first, name), getattr(last, name)
        if after > before:
            found.append(f"{name}: {after}, and {before} at the end of the first tenth")
    before, after = cpu_seconds(samples)
    if after > (1 + SLOWER) * before:
        found.append(f"CPU time: {1e3 * after:.1f} ms a request in the last tenth, {1e3 * before:.1f} in the first")
    return found


def cpu_seconds(samples: list[Sample]) -> tuple[float, float]:
    """CPU seconds of a request in the first tenth and in the last, each the median of its samples."""
    each = len(samples) // TENTHS
    first, last = (statistics.median(one.cpu_s for one in part) for part in (samples[:each], samples[-each:]))
    return first, last


def describe(sample: Sample) -> str:
    """Format a sample as one line."""
    return (
        f"{sample.requests:5} requests  {_mb(sample.resident)} MB  records {_mb(sample.records)} MB  "
        f"{sample.files} files  {sample.threads} threads  {sample.children} children  "
        f"{1e3 * sample.cpu_s:.1f} ms CPU each"
    )


def size_of(found: Any) -> int:
    """Bytes of an object and of all that only it holds: its fields, items and keys."""
    size = sys.getsizeof(found)
    if isinstance(found, BaseModel):
        return size + size_of(found.__dict__)
    if isinstance(found, dict):
        return size + sum(size_of(value) for value in found.values())  # names of fields are shared
    if isinstance(found, list | tuple):
        return size + sum(map(size_of, found))
    return size


def _mb(count: int) -> str:
    return f"{count / 1e6:.1f}"
