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
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from specbench.analysis import Grade, worst_grade
from specbench.decoding import TokenTree
from specbench.engine import Engine

#: The best scores at a place, with their tokens.
Top = tuple[list[float], list[int]]

# Best scores looked at. Where more tokens than these are within the noise floor, no grade would mean anything.
_CONTENDERS = 8
# The noise floor is a maximum over a sample of positions; the true maximum is larger. Twice is the margin given.
_MARGIN = 2.0
# What the noise is measured on: so many answers of AR, so many tokens of each.
_SAMPLES, _SAMPLE_TOKENS = 4, 64


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


@dataclass(frozen=True)
class Noise:
    """How far the same arithmetic in another order moves the gap of the two best scores, and where that was measured.

    Attributes:
        floor: gaps up to this are ties, in units of the score: twice ``largest``.
        largest: change of the gap between one-row and many-row forwards over the same tokens.
        flips: positions where the many-row forward's best token was another one: the rate at which even a perfectly
            lossless method parts from AR here.
        device, dtype, attention: what did the arithmetic; on others the noise is another.
    """

    floor: float
    largest: float
    positions: int
    flips: int
    rows: int
    device: str
    dtype: str
    attention: str


class Grader:
    """Grades outputs against AR's with an engine that has a free slot and the sampling of the run.

    The noise floor is measured with ``rows`` rows; for outputs of another engine (``elsewhere``), whose sums have
    another order, against transformers' own forward too.
    """

    def __init__(self, engine: Engine, rows: int, *, elsewhere: bool = False) -> None:
        self._engine = engine
        self._rows = max(2, rows)
        self._elsewhere = elsewhere
        self._noise: Noise | None = None
        self._samples: list[tuple[Sequence[int], Sequence[int]]] = []

    def sample(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Offers an AR output to measure the noise on; the first few are used, and only once it is asked for."""
        if self._noise is None and len(self._samples) < _SAMPLES and len(output) > 1:
            self._samples.append((prompt, output[:_SAMPLE_TOKENS]))

    @property
    def strict(self) -> bool:
        """fp32 on a CPU, where nothing but the very same tokens is lossless (DESIGN §6)."""
        return self._engine.device.type == "cpu" and self._engine.model.dtype == torch.float32

    @property
    def noise(self) -> Noise:
        """Noise of the top-2 gap, measured on first use; 0 when nothing was sampled."""
        if self._noise is None:
            seen = [self._compared(prompt, output) for prompt, output in self._samples]
            largest = max((change for changes, _ in seen for change in changes), default=0.0)
            self._noise = Noise(
                floor=_MARGIN * largest,
                largest=largest,
                positions=sum(len(output) - 1 for _, output in self._samples),
                flips=sum(flips for _, flips in seen),
                rows=self._rows,
                device=self._engine.device.type,
                dtype=str(self._engine.model.dtype).removeprefix("torch."),
                attention=str(self._engine.report()["attention"]),
            )
        return self._noise

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
        flipped = len(parted) == 2 and all(behind.get(token, math.inf) <= self.noise.floor for token in parted)
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

    def _compared(self, prompt: Sequence[int], output: Sequence[int]) -> tuple[list[float], int]:
        """Changes of the top-2 gap from one-row to many-row forwards over the same tokens, and the latter's flips."""
        single, _ = self._teacher_forced(prompt, output, 1)
        many, flips = self._teacher_forced(prompt, output, self._rows)
        changes = _changes(single, many)
        if self._elsewhere and self._engine.sampling.greedy:  # else its scores are none of transformers'
            changes += _changes(single, self._by_transformers(prompt, output))
        return changes, flips

    def _by_transformers(self, prompt: Sequence[int], output: Sequence[int]) -> list[Top]:
        """The best tokens after each of ``output[:-1]`` by the model as it is without this engine."""
        ids = torch.tensor([[*prompt, *output[:-1]]], dtype=torch.int64, device=self._engine.device)
        with self._engine.detached(), torch.inference_mode():
            logits = self._engine.model(ids).logits[0, len(prompt) :].float()
        scores, tokens = logits.topk(min(_CONTENDERS, logits.shape[-1]))
        return list(zip(scores.tolist(), tokens.tolist(), strict=True))

    def _teacher_forced(self, prompt: Sequence[int], output: Sequence[int], rows: int) -> tuple[list[Top], int]:
        """(scores, ids) of the best tokens after each of ``output[:-1]``, ``rows`` at a time, and how often a chain was
        left before its end."""
        engine, slot = self._engine, self._engine.alloc()
        found: list[Top] = []
        at = flips = 0
        try:
            engine.prefill(slot, prompt)
            while at < len(output) - 1:
                chain = output[at : min(at + rows, len(output) - 1)]
                result = engine.step({slot: TokenTree.chain(chain)}, top_k=2 if rows == 1 else _CONTENDERS)[slot]
                assert result.top is not None
                # A flip inside the chain: go on from where the tokens still agree.
                kept = len(result.path)
                scores, ids = (column[:kept].tolist() for column in result.top)
                found += zip(scores, ids, strict=True)
                flips += kept < len(chain)
                at += kept
        finally:
            engine.free(slot)
        return found, flips


def _changes(ours: Sequence[Top], others: Sequence[Top]) -> list[float]:
    """How far each gap of our two best scores is from that between the same tokens elsewhere."""
    changes = []
    for (scores, ids), (other_scores, other_ids) in zip(ours, others, strict=True):
        other = dict(zip(other_ids, other_scores, strict=True))
        first, second = (other.get(token) for token in ids[:2])
        if first is not None and second is not None:
            change = abs(scores[0] - scores[1] - (first - second))
            # Infinite where the runner-up passes the top-p filter on one side only: that is no noise of a score.
            changes += [change] if math.isfinite(change) else []
    return changes


def tally(grades: Iterable[Divergence | None], noise: Noise | None) -> dict[str, Any]:
    """Counts of one method's grades, its verdict (the worst grade), and where it diverged; JSON-ready."""
    seen = list(grades)
    diverged = [d for d in seen if d is not None]
    counts = Counter(d.grade for d in diverged)
    return {
        "verdict": worst_grade(counts),
        "exact": len(seen) - len(diverged),
        "numeric_tie": counts["numeric-tie"],
        "lossy": counts["lossy"],
        "noise_floor": noise and noise.floor,
        "noise": noise and asdict(noise),
        "divergences": [{"prompt": d.prompt_id, "at": d.at, "gap": d.gap, "grade": d.grade} for d in diverged],
    }


def grade_all(
    engine: Engine,
    rows: int,
    prompts: Mapping[str, Sequence[int]],
    reference: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Mapping[str, Sequence[int]]],
    elsewhere: Collection[str] = (),
) -> dict[str, dict[str, Any]]:
    """Grade every method's outputs (label -> item id -> ids) against AR's: label -> :func:`tally`."""
    graders = {other: Grader(engine, rows, elsewhere=other) for other in (False, True)}
    for item, ids in reference.items():
        for each in graders.values():
            each.sample(prompts[item], ids)
    graded: dict[str, dict[str, Any]] = {}
    for label, mine in outputs.items():
        grader = graders[label in elsewhere]
        found = [grader.grade(item, prompts[item], reference[item], ids) for item, ids in mine.items()]
        # Where everything has to be exact and is, the forwards that it takes to measure the noise are spared.
        graded[label] = tally(found, grader.noise if any(found) or not grader.strict else None)
    return graded
