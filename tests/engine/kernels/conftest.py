"""Kernels are tested on the device where there is one, and in Triton's interpreter where there is none."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
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
def _products_of_bf16(device: str) -> Iterator[None]:
    """Products of bf16 that the interpreter holds as integers, by the numbers that they stand for."""
    if device != "cpu":
        yield
        return
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    own = InterpreterBuilder.create_dot

    def number(side: Any) -> Any:
        if side.dtype.scalar != tl.bfloat16:
            return side
        return TensorHandle((side.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(builder: Any, a: Any, b: Any, *more: Any) -> Any:
        return own(builder, number(a), number(b), *more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(InterpreterBuilder, "create_dot", create_dot)
        yield


@pytest.fixture(scope="session", autouse=True)
def _interpreted(device: str) -> None:
    import triton
    import triton.language as tl

    if device == "cpu" and isinstance(tl.sum, triton.JITFunction):
        pytest.fail("triton was imported before TRITON_INTERPRET was set; set it in tests/conftest.py")
