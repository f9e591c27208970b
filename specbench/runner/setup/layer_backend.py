"""Native: whether a run's layers go by code of our own, and the build of the C++ before anything is timed."""

from __future__ import annotations

from collections.abc import Callable

from specbench.common import EnvironmentRefused
from specbench.engine import CPU_SOURCE
from specbench.planning import Decoding, Plan, split_names

# A run of fewer tokens is over before a build would be.
_WORTH = 200


def native_of(plan: Decoding, device: str) -> bool | None:
    """What the engine is told on a kind of device: on, off, or None, which is on where it can be had."""
    if plan.native != "auto":
        return plan.native == "on"
    if device != "cpu":
        return None
    return False if _tokens(plan) < _WORTH and not CPU_SOURCE.built else None


def build_layers(plan: Decoding, say: Callable[[str], None]) -> None:
    """Builds our layers where a plan will want them and they have not been built; a failure is the engine's to tell."""
    if native_of(plan, "cpu") is False or plan.compile:
        return
    from specbench.engine import open_cpu_library  # with torch

    try:
        open_cpu_library(say)
    except EnvironmentRefused:
        return


def _tokens(plan: Decoding) -> float:
    """Tokens that a plan asks for at most, as far as it says."""
    if plan.limit is None or plan.max_new_tokens is None:
        return float("inf")
    methods = len(split_names(plan.method)) + 1 if plan.method else 2
    repeats = plan.repeats if isinstance(plan, Plan) else 1
    return plan.limit * plan.max_new_tokens * methods * repeats
