"""Count the grades of answers compared with AR's over prompts; the runner assigns the grades."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from specbench.analysis.stats.proportions import proportion_interval

Grade = Literal["exact", "numeric-tie", "lossy"]

#: From the best to the worst.
GRADES: tuple[Grade, ...] = ("exact", "numeric-tie", "lossy")


def worst_grade(grades: Iterable[Grade]) -> Grade:
    """The worst of some grades; "exact" if there are none."""
    return max(grades, key=GRADES.index, default="exact")


def prompt_of(item: str) -> tuple[str, str]:
    """Prompt and turn (empty for the first) from a tally's key "id|0" or "id|0|2" of an answer without repeats."""
    found = re.fullmatch(r"(.*?)\|0(?:\|(\d+))?", item, re.DOTALL)
    assert found is not None, item
    return found[1], found[2] or ""


def grade_rates(prompts: Iterable[str], diverged: Iterable[tuple[str, Grade]]) -> dict[str, dict[str, Any]]:
    """Grade -> ``count``, ``of``, ``low`` and ``high`` (Wilson's 95% interval) of the share of prompts; JSON-ready.

    A prompt counts once, with the grade of its worst answer. ``diverged`` holds (prompt, grade) of each answer that
    differs from AR's.
    """
    graded: dict[str, Grade] = dict.fromkeys(prompts, "exact")
    for prompt, grade in diverged:
        if prompt in graded:
            graded[prompt] = worst_grade((graded[prompt], grade))
    counts = Counter(graded.values())
    found: dict[str, dict[str, Any]] = {}
    for grade in GRADES:
        interval = proportion_interval(counts[grade], len(graded))
        shares = {"low": interval and interval.low, "high": interval and interval.high}
        found[grade] = {"count": counts[grade], "of": len(graded), **shares}
    return found


def merge(tallies: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the tallies of one method over several samplings, see :func:`specbench.runner.grades.lossless.tally`."""
    seen = list(tallies)
    noises = [tally["noise"] for tally in seen if tally["noise"] is not None]
    return {
        "verdict": worst_grade(tally["verdict"] for tally in seen),
        **{name: sum(tally[name] for tally in seen) for name in ("exact", "numeric_tie", "lossy")},
        "noise_floor": max((noise["floor"] for noise in noises), default=None),
        "noise": max(noises, key=lambda noise: noise["floor"], default=None),
        "divergences": [divergence for tally in seen for divergence in tally["divergences"]],
    }
