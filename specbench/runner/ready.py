"""Ready: what can be known of a machine before minutes are spent on loading a model for it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from specbench.backends.rows import Row
from specbench.common import EnvironmentRefused, UsageError
from specbench.common.errors import EngineFault
from specbench.common.files import check_can_make
from specbench.hardware import gpus, read_profile
from specbench.runner.resolving import Resolved
from specbench.runner.room import assert_fits


class OnDevice(Protocol):
    """What says which device is wanted."""

    @property
    def gpu(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def graphs(self) -> str: ...
    @property
    def compile(self) -> bool: ...


def check_device(plan: OnDevice) -> None:
    """Refuse a plan whose device is not here."""
    assert_gpu(plan.gpu)
    if plan.device.startswith("cuda") and gpus.seen() == []:
        raise EnvironmentRefused(f"device '{plan.device}' is not available here; use --device auto")
    assert_graphs(plan.graphs, plan.device)
    if plan.compile and (plan.device == "cpu" or (plan.device == "auto" and gpus.seen() == [])):
        assert_compiler()


def check_ready(resolved: Resolved) -> None:
    """Whether a plan's data, profile, folder and memory are there, as far as that is known without its model."""
    plan = resolved.plan
    assert_fits(plan, resolved.methods, plan.concurrency)
    if plan.profile is not None:
        read_profile(plan.profile)
    check_can_make(plan.out)
    for task in resolved.tasks:
        _ = task.instance


def missing(rows: Sequence[Row]) -> Iterator[EngineFault]:
    """What of the rows of a plan is not installed, each as the sentence that says so; nothing is started."""
    for row in rows:
        if row.url is None:
            try:
                row.backend.version(row.options)
            except EngineFault as fault:
                yield EngineFault(f"{row.label}: {fault}")


def assert_gpu(wanted: str) -> None:
    """``--gpu NAME``: refuse to run on any other device."""
    if wanted == "auto":
        return
    asked, names = gpus.find(wanted), gpus.seen()
    if names is not None and asked not in [gpus.identify(name, None) for name in names]:
        gpus.require(wanted, names[0] if names else None, None)
    try:
        import torch
    except ImportError as error:
        raise EnvironmentRefused("torch is not installed; pip install specbench-llm brings it") from error
    if torch.cuda.is_available():
        gpus.require(wanted, torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory)
    else:
        gpus.require(wanted, None, None)


#: Compilers of C++ that torch.compile looks for on a CPU, after ``CXX``.
COMPILERS = ("g++", "clang++")


def assert_compiler() -> None:
    """Refuse ``--compile`` on a CPU where there is no C++ compiler."""
    wanted = [own] if (own := os.environ.get("CXX")) else COMPILERS
    if not any(shutil.which(each) for each in wanted):
        raise EnvironmentRefused(
            f"--compile writes C++ on a CPU, and no compiler is here ({' or '.join(wanted)}); install g++, set CXX to "
            "another, or leave --compile out"
        )


def assert_graphs(graphs: str, device: str) -> None:
    """Refuse ``--graphs on`` on a CPU."""
    if graphs != "on":
        return
    there = device != "cpu" and gpus.seen() != []
    if there:
        import torch

        there = torch.cuda.is_available()
    if not there:
        raise EnvironmentRefused("CUDA graphs need a CUDA device; use --graphs auto")


def other_gpu(name: str | None, profile: Path | None) -> gpus.Gpu | None:
    """The GPU of ``--project``; UsageError for a profile and nothing to project onto."""
    if name is None and profile is not None:
        raise UsageError("--profile has the step times for --project; name the GPU with --project GPU")
    return None if name is None else gpus.find(name)
