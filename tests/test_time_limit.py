"""The suite's limit of processor time: it ends a slow test, and leaves alone what compiles kernels."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent


def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, seconds: float, item: Any) -> None:
    """A test of so many seconds of processor time, as the suite's hook sees it."""
    (plugin,) = (each for each in request.config.pluginmanager.get_plugins() if hasattr(each, "LONGEST"))
    monkeypatch.setattr(plugin, "slowness", lambda: 1.0)
    times = [os.times_result((0, 0, 0, 0, 0)), os.times_result((seconds, 0, 0, 0, seconds))]
    with monkeypatch.context() as patched:
        patched.setattr(plugin, "os", SimpleNamespace(times=lambda: times.pop(0), cpu_count=lambda: 1))
        hook = plugin.pytest_runtest_call(item)
        next(hook)
        next(hook, None)


def item(path: str = "engine/test_graphs.py", *marks: str) -> Any:
    """A test of a file of the suite."""
    return SimpleNamespace(
        path=ROOT / path,
        iter_markers=lambda name: [name] if name in marks else [],
        get_closest_marker=lambda name: name if name in marks else None,
    )


def test_a_slow_test_fails(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run(request, monkeypatch, 1.0, item())
    run(request, monkeypatch, 60.0, item("engine/test_graphs.py", "slow"))
    with pytest.raises(pytest.fail.Exception):
        run(request, monkeypatch, 60.0, item())


@pytest.mark.parametrize(
    ("there", "test"),
    [
        (True, item()), (False, item("engine/test_cuda.py", "gpu")),
        (False, item("engine/kernels/test_sample.py")), (False, item("engine/kernels/deeper/test_sample.py")),
    ],
    ids=["a CUDA device", "a mark", "kernels", "kernels further down"],
)  # fmt: skip
def test_compiling_kernels_is_not_limited(
    there: bool, test: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    run(request, monkeypatch, 60.0, test)
