"""The builders by name, called alike: what a method needs whose option names a tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from specbench.decoding.tree import TokenTree
from specbench.decoding.trees.fan_out import WIDTH, accum_logp, top2gap
from specbench.decoding.trees.marginals import Marginals
from specbench.decoding.trees.prefixes import StepSeconds, auto, chain, optimal


@dataclass(frozen=True)
class Knobs:
    """Settings of all builders; each reads its own and leaves the rest.

    Attributes:
        width: children of a row at most, of ``accum-logp`` and ``top2gap``.
        beta: sharpness of ``top2gap``'s caps, per nat.
        g0: gap of ``top2gap`` at which half the width is left, in nats.
        spine: whether ``optimal`` holds the greedy spine whatever it is worth.
        step_seconds: rows -> seconds of a whole step, which ``auto`` chooses a budget by and cannot do without.
    """

    width: int = WIDTH
    beta: float = 2.0
    g0: float = 1.0
    spine: bool = True
    step_seconds: StepSeconds | None = None


class Builder(Protocol):
    """Marginals and a budget in rows, root included (``auto``: the most it may take), to a tree of no more rows."""

    def __call__(self, marginals: Marginals, budget: int, knobs: Knobs = ..., /) -> TokenTree: ...


DEFAULT = "optimal"
_DEFAULTS = Knobs()


def _chain(marginals: Marginals, budget: int, knobs: Knobs = _DEFAULTS, /) -> TokenTree:
    return chain(marginals, budget)


def _accum_logp(marginals: Marginals, budget: int, knobs: Knobs = _DEFAULTS, /) -> TokenTree:
    return accum_logp(marginals, budget, knobs.width)


def _top2gap(marginals: Marginals, budget: int, knobs: Knobs = _DEFAULTS, /) -> TokenTree:
    return top2gap(marginals, budget, knobs.width, knobs.beta, knobs.g0)


def _optimal(marginals: Marginals, budget: int, knobs: Knobs = _DEFAULTS, /) -> TokenTree:
    return optimal(marginals, budget, knobs.spine)


def _auto(marginals: Marginals, budget: int, knobs: Knobs = _DEFAULTS, /) -> TokenTree:
    if knobs.step_seconds is None:
        raise ValueError("the auto tree chooses its budget by step times; give it step_seconds")
    return auto(marginals, knobs.step_seconds, budget).tree


BUILDERS: Mapping[str, Builder] = {
    "chain": _chain,
    "accum-logp": _accum_logp,
    "top2gap": _top2gap,
    "optimal": _optimal,
    "auto": _auto,
}
