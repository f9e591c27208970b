"""Faulty parts of a GPU check: a good one, and one for every way to fail. Needs nothing that a bare image lacks."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.gpu_check.records import Figure

_ROOM = 256 << 20  # bytes of address space after what is taken already


def device(bench: Any) -> Iterator[Figure]:
    bench.journal.append("device", rehearse=bench.rehearse, name="a planted GPU", memory_bytes=None, versions={})
    yield Figure("free memory", 7.0, "GiB")


def no_device(bench: Any) -> Iterator[Figure]:
    bench.journal.append("no device")
    yield from ()
    raise RuntimeError("there is none")


def good(bench: Any) -> Iterator[Figure]:
    yield Figure("one", 1.0, "ms")
    yield Figure("two", 2.0, "ms")


def of_a_family(bench: Any) -> Iterator[Figure]:
    yield Figure("one", 1.0, "ms", shape="qwen3-8b")


def raises(bench: Any) -> Iterator[Figure]:
    yield Figure("before the error", 3.0, "ms")
    raise RuntimeError("the device is on fire\nand more")


def lacks(bench: Any) -> Iterator[Figure]:
    """Needs a package that a bundle brings and this machine has not."""
    yield Figure("before the import", 7.0, "ms")
    raise ModuleNotFoundError("No module named 'nvidia_ml_py'", name="nvidia_ml_py.inner")


def looks_for_flash(bench: Any) -> Iterator[Figure]:
    """As transformers does, which imports what it finds."""
    if importlib.util.find_spec("flash_attn") is not None:
        importlib.import_module("flash_attn")
    yield Figure("without it", 8.0, "ms")


def compiles(bench: Any) -> Iterator[Figure]:
    """As a part does that builds a launcher."""
    yield Figure("before building", 9.0, "ms")
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")
    yield Figure("built", 10.0, "ms")


def predicted(known: Any) -> Iterator[Figure]:
    yield Figure("one", None, "ms", predicted=0.5, basis=f"datasheet of {known.card.name}")
    yield Figure("before the hang", None, "ms", predicted=0.25)
    yield Figure("never measured", None, "ms", predicted=0.125)


def hangs(bench: Any) -> Iterator[Figure]:
    yield Figure("before the hang", 4.0, "ms")
    time.sleep(600)


def aborts(bench: Any) -> Iterator[Figure]:
    yield Figure("before the abort", 5.0, "ms")
    os.abort()


def eats(bench: Any) -> Iterator[Figure]:
    yield Figure("before memory was out", 6.0, "ms")
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + _ROOM, taken + _ROOM))
    held = []
    while True:
        held.append(bytearray(_ROOM // 8))


def leaves(bench: Any) -> Iterator[Figure]:
    """Starts a process that outlives it, unless somebody ends it."""
    pid = os.fork()
    if not pid:
        time.sleep(600)
        os._exit(0)
    yield Figure("left over", float(pid), "pid", key="pid")
