"""Losslessness, graded per prompt against AR (DESIGN §6): exact, numeric tie, or lossy.

Two runs of the same arithmetic in another order differ in the last bits, and an argmax between two nearly equal scores
can then flip. Whether a difference is of that kind is measured, not assumed: how far the two tokens are behind the best
score at the first divergence is held against the noise of that gap between one-row and many-row forwards on this
device. Only such a flip is a numeric tie: a token that is no contender there is lossy however close the two best are,
and so is an answer that ends early or late, because the stop rule reads tokens and has no last bits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specbench.engine.engine import Engine
from specbench.engine.tree import TokenTree

Grade = Literal["exact", "numeric-tie", "lossy"]

# Best scores looked at. Where more tokens than these are within the noise floor, no grade would mean anything.
_CONTENDERS = 8
# The noise floor is a maximum over a sample of positions; the true maximum is larger. Twice is the margin given.
_MARGIN = 2.0


def first_divergence(reference: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token that differs (or that only one of them has); None when they are equal."""
    for at, (a, b) in enumerate(zip(reference, other, strict=False)):
        if a != b:
            return at
    return None if len(reference) == len(other) else min(len(reference), len(other))


@dataclass(frozen=True)
class Divergence:
    """Where a method left AR: token index in the output, AR's top-2 score gap there, and the grade.

    ``gap`` is None where top-k or top-p leave one token only.
    """

    prompt_id: str
    at: int
    gap: float | None
    grade: Grade


class Grader:
    """Grades outputs against AR's with an engine that is otherwise idle.

    Args:
        engine: an engine with a free slot, the sampling of the run and room for prompt and output.
        rows: rows of the largest tree of the methods graded; the noise floor is measured against it.
    """

    def __init__(self, engine: Engine, rows: int) -> None:
        self._engine = engine
        self._rows = max(2, rows)
        self._floor: float | None = None
        self._samples: list[tuple[Sequence[int], Sequence[int]]] = []

    def sample(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Offers an AR output to measure the noise floor on; the first few are used, and only if a grade needs it."""
        if self._floor is None and len(self._samples) < 4 and len(output) > 1:
            self._samples.append((prompt, output[:64]))

    @property
    def floor(self) -> float:
        """Noise floor of the top-2 gap in units of the score, measured on first use; 0 when nothing was sampled."""
        if self._floor is None:
            noise = [self._noise(prompt, output) for prompt, output in self._samples]
            self._floor = _MARGIN * max(noise, default=0.0)
        return self._floor

    def grade(
        self, prompt_id: str, prompt: Sequence[int], ar: Sequence[int], other: Sequence[int]
    ) -> Divergence | None:
        """The divergence of ``other`` from AR's output, graded; None when they are token for token the same."""
        at = first_divergence(ar, other)
        if at is None:
            return None
        behind = self._behind([*prompt, *ar[:at]])
        gap = sorted(behind.values())[1]
        parted = [ids[at] for ids in (ar, other) if at < len(ids)]
        flipped = len(parted) == 2 and all(behind.get(token, math.inf) <= self.floor for token in parted)
        return Divergence(prompt_id, at, gap if math.isfinite(gap) else None, "numeric-tie" if flipped else "lossy")

    def _behind(self, ids: Sequence[int]) -> dict[int, float]:
        """How far each of the best tokens is behind the best score after ``ids``, from a one-row step as AR runs it."""
        engine, slot = self._engine, self._engine.alloc()
        try:
            if len(ids) == 1:
                top = engine.prefill(slot, ids, top_k=_CONTENDERS).top
            else:
                engine.prefill(slot, ids[:-1])
                top = engine.step({slot: TokenTree.chain([ids[-1]])}, top_k=_CONTENDERS)[slot].top
        finally:
            engine.free(slot)
        assert top is not None
        scores, tokens = top[0][0].tolist(), top[1][0].tolist()
        return {token: scores[0] - score for token, score in zip(tokens, scores, strict=True)}

    def _noise(self, prompt: Sequence[int], output: Sequence[int]) -> float:
        """Largest change of the top-2 gap between one-row and many-row forwards over the same tokens."""
        single = self._teacher_forced(prompt, output, 1)
        many = self._teacher_forced(prompt, output, self._rows)
        noise = 0.0
        for (scores, ids), wide in zip(single, many, strict=True):
            first, second = (wide.get(int(token)) for token in ids[:2])
            if first is not None and second is not None:
                change = abs(float(scores[0] - scores[1]) - (first - second))
                # Infinite where the runner-up passes the top-p filter on one side only: that is no noise of a score.
                noise = max(noise, change) if math.isfinite(change) else noise
        return noise

    def _teacher_forced(self, prompt: Sequence[int], output: Sequence[int], rows: int) -> Any:
        """Scores after each of ``output[:-1]``, ``rows`` at a time: (scores, ids) pairs, or dicts for many rows."""
        engine, slot = self._engine, self._engine.alloc()
        found: list[Any] = []
        try:
            engine.prefill(slot, prompt)
            at = 0
            while at < len(output) - 1:
                chain = output[at : min(at + rows, len(output) - 1)]
                result = engine.step({slot: TokenTree.chain(chain)}, top_k=2 if rows == 1 else _CONTENDERS)[slot]
                assert result.top is not None
                for scores, ids in zip(*result.top, strict=True):
                    pair = (scores, ids)
                    found.append(pair if rows == 1 else dict(zip(ids.tolist(), scores.tolist(), strict=True)))
                if len(result.path) < len(chain):  # a flip inside the chain: go on from where the tokens still agree
                    del found[len(found) - (len(chain) - len(result.path)) :]
                at += len(result.path)
        finally:
            engine.free(slot)
        return found


def tally(grades: Iterable[Divergence | None], floor: float | None) -> dict[str, Any]:
    """Counts of one method's grades, its verdict (the worst grade), and where it diverged."""
    seen = list(grades)
    diverged = [d for d in seen if d is not None]
    counts = Counter(d.grade for d in diverged)
    worst: Grade = "lossy" if counts["lossy"] else "numeric-tie" if counts["numeric-tie"] else "exact"
    return {
        "verdict": worst,
        "exact": len(seen) - len(diverged),
        "numeric_tie": counts["numeric-tie"],
        "lossy": counts["lossy"],
        "noise_floor": floor,
        "divergences": [{"prompt": d.prompt_id, "at": d.at, "gap": d.gap, "grade": d.grade} for d in diverged],
    }


def merge(tallies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Tallies of one method over unlike samplings as one."""
    order: list[Grade] = ["exact", "numeric-tie", "lossy"]
    floors = [tally["noise_floor"] for tally in tallies if tally["noise_floor"] is not None]
    return {
        "verdict": max((tally["verdict"] for tally in tallies), key=order.index),
        **{name: sum(tally[name] for tally in tallies) for name in ("exact", "numeric_tie", "lossy")},
        "noise_floor": max(floors, default=None),
        "divergences": [divergence for tally in tallies for divergence in tally["divergences"]],
    }


def grade_all(
    engine: Engine,
    rows: int,
    prompts: Mapping[str, Sequence[int]],
    reference: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Mapping[str, Sequence[int]]],
) -> dict[str, dict[str, Any]]:
    """Grades every method's outputs against AR's.

    Args:
        engine: see :class:`Grader`.
        rows: rows of the largest tree.
        prompts: item id -> prompt ids.
        reference: item id -> AR's output ids.
        outputs: method label -> item id -> output ids.

    Returns:
        Method label -> :func:`tally`.
    """
    grader = Grader(engine, rows)
    for item, ids in reference.items():
        grader.sample(prompts[item], ids)
    graded: dict[str, dict[str, Any]] = {}
    for label, mine in outputs.items():
        found = [grader.grade(item, prompts[item], reference[item], ids) for item, ids in mine.items()]
        graded[label] = tally(found, grader.floor if any(found) else None)
    return graded
