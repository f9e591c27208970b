"""Check, before a model is loaded, that the device that a plan names is present."""

from __future__ import annotations

import os
import shutil
from typing import Protocol

from specbench.common import EnvironmentRefused
from specbench.hardware import gpus


class OnDevice(Protocol):
    """The options of a plan that choose its device."""

    @property
    def gpu(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def graphs(self) -> str: ...
    @property
    def compile(self) -> bool: ...


def check_device(plan: OnDevice) -> None:
    """Refuse a plan whose device is missing."""
    assert_gpu(plan.gpu)
    if plan.device.startswith("cuda") and gpus.seen() == []:
        raise EnvironmentRefused(f"device '{plan.device}' is not available here; use --device auto")
    assert_graphs(plan.graphs, plan.device)
    if plan.compile and (plan.device == "cpu" or (plan.device == "auto" and gpus.seen() == [])):
        assert_compiler()


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
    """Refuse ``--compile`` on a CPU without a C++ compiler."""
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
