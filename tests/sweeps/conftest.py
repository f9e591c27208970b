"""Quick intervals: five hundred draws of the bootstrap, where it decides nothing how exact an interval's ends are."""

from __future__ import annotations

from functools import partial

import pytest

from specbench.results.stats import paired_ratio
from specbench.sweeps import search


@pytest.fixture(autouse=True)
def _quick_intervals(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not any(request.node.iter_markers("slow")):
        monkeypatch.setattr(search, "paired_ratio", partial(paired_ratio, draws=500))
