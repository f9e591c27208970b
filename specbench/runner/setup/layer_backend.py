"""Decide whether a run uses our own layers, and build the C++ code before anything is timed."""

from __future__ import annotations

from collections.abc import Callable

from specbench.common import EnvironmentRefused
from specbench.engine import CPU_SOURCE
from specbench.planning import Decoding, Plan, split_names

# A run with fewer tokens would end before the build.
_WORTH = 200


def native_of(plan: Decoding, device: str) -> bool | None:
    """The engine's setting for a kind of device: on, off, or None (on if available)."""
    if plan.native != "auto":
        return plan.native == "on"
    if device != "cpu":
        return None
    return False if _tokens(plan) < _WORTH and not CPU_SOURCE.built else None


def build_layers(plan: Decoding, say: Callable[[str], None]) -> None:
    """Build our layers if a plan will use them and they are not built; the engine reports a failure."""
    if native_of(plan, "cpu") is False or plan.compile:
        return
    from specbench.engine import open_cpu_library  # imports torch

    try:
        open_cpu_library(say)
    except EnvironmentRefused:
        return


def _tokens(plan: Decoding) -> float:
    """Most tokens of a plan, if the plan limits them."""
    if plan.limit is None or plan.max_new_tokens is None:
        return float("inf")
    methods = len(split_names(plan.method)) + 1 if plan.method else 2
    repeats = plan.repeats if isinstance(plan, Plan) else 1
    return plan.limit * plan.max_new_tokens * methods * repeats
