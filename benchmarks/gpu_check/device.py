"""Describe the device of the check: name, free memory, and the shapes that do not fit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import torch

from benchmarks.gpu_check import foreign, sessions, shapes
from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.records import Figure
from specbench.common import EnvironmentRefused
from specbench.hardware import environment

#: Kind of the journal line if there is no device to check.
MISSING = "no device"

_VERSIONS = ("torch", "triton", "transformers", "numpy", "pandas", "flash-attn")
_COMPILERS = ("cc", "gcc", "clang")  # Triton and torch.compile build kernel launchers with a C compiler


def run(bench: Bench) -> Iterator[Figure]:
    """Describe the device in the journal.

    Raises:
        EnvironmentRefused: there is no device, and this is not a rehearsal.
    """
    if not bench.rehearse and not torch.cuda.is_available():
        bench.journal.append(MISSING)
        raise EnvironmentRefused("torch sees no CUDA device; --rehearse runs all parts on tiny models without one")
    found = None if bench.rehearse else torch.cuda.get_device_properties(0)
    free = sessions.free_bytes(bench)
    bench.journal.append(
        "device",
        rehearse=bench.rehearse,
        name=found.name if found else "CPU",
        memory_bytes=found.total_memory if found else None,
        free_bytes=None if bench.rehearse else free,
        versions={"Python": environment.capture("cpu").python, **{name: _version(name) for name in _VERSIONS}},
    )
    for package in foreign.PACKAGES:
        if why := foreign.why_hidden(bench.journal, package):
            yield Figure(package, None, note=f"hidden, because it cannot be imported: {why}")
    if not any(map(shutil.which, _COMPILERS)):
        yield Figure("a C compiler", None, note="missing: Triton cannot build launchers, and the part compiled fails")
    if found is None:
        return
    yield Figure("free memory", free / 2**30, "GiB", note=f"of {found.total_memory / 2**30:.1f}, {found.name}")
    yield Figure("multiprocessors", found.multi_processor_count, "SMs", note=f"compute {found.major}.{found.minor}")
    for family in shapes.WANTED:
        shape, why = shapes.fitting(family, free, 2 * bench.size.context, bench.folder)
        layers, name = (shape.layers, shape.name) if shape else (None, "")
        yield Figure(f"layers of {family}", layers, "layers", note=why or "all", shape=name)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
