"""Kernels are tested on the device where there is one, and in Triton's interpreter where there is none."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

# Read when a kernel is defined, so before anything imports triton.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session", autouse=True)
def _interpreted(device: str) -> None:
    import triton
    import triton.language as tl

    if device == "cpu" and isinstance(tl.sum, triton.JITFunction):
        pytest.fail("triton was imported before TRITON_INTERPRET was set; set it in tests/conftest.py")
