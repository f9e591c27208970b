"""Read counters from a server's Prometheus page."""

from __future__ import annotations

import math
from collections.abc import Mapping

from specbench.backends.streaming import Server
from specbench.common import EngineFault


def counters(server: Server, names: Mapping[str, str]) -> dict[str, float]:
    """Return counters of ``/metrics``, summed over labels; empty if there is no such page or a value is no number.

    Args:
        names: the server's name of a counter -> the name to return it by.
    """
    found: dict[str, float] = {}
    try:
        for line in server.get("/metrics").decode(errors="replace").splitlines():
            name = line.partition("{")[0].partition(" ")[0]
            if name in names:
                value = float(line.rpartition(" ")[2])
                if not math.isfinite(value):
                    return {}
                found[names[name]] = found.get(names[name], 0.0) + value
    except (EngineFault, ValueError):
        return {}
    return found
