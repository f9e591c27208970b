"""Quick intervals: five hundred draws of the bootstrap, where it decides nothing how exact an interval's ends are."""

from __future__ import annotations

from functools import partial

import pytest

from specbench.analysis import speedup
from specbench.analysis.stats import many, paired_ratio
from specbench.sweeps import measured


@pytest.fixture(autouse=True)
def _quick_intervals(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not any(request.node.iter_markers("slow")):
        for module in (measured, speedup):  # a sweep's cells and the rows of its parts
            monkeypatch.setattr(module, "paired_ratio", partial(paired_ratio, draws=500))
            monkeypatch.setattr(module, "many", partial(many, draws=500))
