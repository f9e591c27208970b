"""Tree builders by name, all with the same signature, for methods with an option that names a tree."""

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
    """Settings of all builders; each builder reads only its own.

    Attributes:
        width: most children of a row, for ``accum-logp`` and ``top2gap``.
        beta: for ``top2gap``, how steeply the number of children falls with the gap, per nat.
        g0: for ``top2gap``, the gap in nats at which half of the width remains.
        spine: whether ``optimal`` always includes the greedy chain.
        step_seconds: rows -> seconds of a whole step; ``auto`` requires it to choose a budget.
    """

    width: int = WIDTH
    beta: float = 2.0
    g0: float = 1.0
    spine: bool = True
    step_seconds: StepSeconds | None = None


class Builder(Protocol):
    """Builds a tree from marginals and a budget, which is the most rows that the tree may have, root included."""

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
        raise ValueError("cannot choose the budget of an auto tree: step_seconds is missing; give it")
    return auto(marginals, knobs.step_seconds, budget).tree


BUILDERS: Mapping[str, Builder] = {
    "chain": _chain,
    "accum-logp": _accum_logp,
    "top2gap": _top2gap,
    "optimal": _optimal,
    "auto": _auto,
}
