"""Fixtures of the sandbox's tests."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import processes
from support.processes import BARE, TIGHT

from specbench.evals.sandbox.sandbox import Sandbox


@pytest.fixture(params=["strongest", "bare"])
def box(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sandbox:
    """A sandbox whose temporary files are watched."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    made = Sandbox(TIGHT)
    if request.param == "bare":
        if made.confinement == BARE:
            pytest.skip("this machine has no stronger confinement, so both cases are the same")
        made.confinement = BARE
    return made


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """After each program: no process and no file of it is left, and no signal arrived."""
    ctypes.CDLL(None).prctl(36, ctypes.c_ulong(1), 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans come to us
    before = processes.children()
    yield
    assert processes.children() <= before
    scratch = tmp_path / "scratch"
    assert not scratch.exists() or os.listdir(scratch) == []
