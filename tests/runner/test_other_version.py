"""Whether a stored run's engine is still the one that is there: by its version, where it can be asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specbench.common.errors import EngineFault
from specbench.runner.config import _is_another


def gone(options: Any) -> str:
    raise EngineFault("it is not installed")


@pytest.mark.parametrize(
    ("now", "before", "another"),
    [
        ("2.1", "2.1", False),
        ("2.1", "2.0", True),
        ("2.1", None, True),  # the run had no such row
        (None, "2.1", False),
        (gone, "2.1", False),  # its figures stand
    ],
)
def test_an_engine_is_another_by_its_version(now: Any, before: str | None, another: bool) -> None:
    version = now if callable(now) else lambda options: now
    facts: Any = before and SimpleNamespace(version=before)
    row: Any = SimpleNamespace(url="", options=None, backend=SimpleNamespace(version=version))
    assert _is_another(row, facts) is another
