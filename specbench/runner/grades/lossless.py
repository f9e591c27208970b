"""Grade losslessness per prompt against AR: exact, numeric tie, or lossy.

The same arithmetic in another order differs in the last bits, and then an argmax between two nearly equal scores can
flip. Whether a difference is of that kind is measured: the distance of the two tokens from the best score at the first
divergence is compared with the noise of that gap between one-row and many-row forwards on this device. Only such a flip
is a numeric tie. A token that is not among the near-best ones is lossy however close the two best are; so is an answer
that ends early or late, because the stop rule reads tokens and has no rounding.
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

#: The best scores at a position, with their tokens.
Top = tuple[list[float], list[int]]

# Number of best scores considered. If more tokens are within the noise floor, a grade would mean nothing.
_CONTENDERS = 8
# The noise floor is a maximum over a sample of positions, and the true maximum is larger; so it is doubled.
_MARGIN = 2.0
# The noise is measured on this many answers of AR, and this many tokens of each.
_SAMPLES, _SAMPLE_TOKENS = 4, 64


def first_divergence(reference: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token that differs (or that only one answer has); None if they are equal."""
    for at, (a, b) in enumerate(zip(reference, other, strict=False)):
        if a != b:
            return at
    return None if len(reference) == len(other) else min(len(reference), len(other))


@dataclass(frozen=True)
class Divergence:
    """A divergence from AR: token index in the output, AR's top-2 score gap there, and the grade.

    ``gap`` is None if top-k or top-p leave only one token.
    """

    prompt_id: str
    at: int
    gap: float | None
    grade: Grade


@dataclass(frozen=True)
class Noise:
    """How much another order of the same arithmetic changes the gap of the two best scores, and where it was measured.

    Attributes:
        floor: gaps up to this are ties, in units of the score: twice ``largest``.
        largest: change of the gap between one-row and many-row forwards over the same tokens.
        flips: positions where the many-row forward's best token was different: the rate at which even a perfectly
            lossless method diverges from AR here.
        device, dtype, attention: where it was measured; elsewhere the noise differs.
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
    """Grade outputs against AR's, with an engine that has a free slot and the run's sampling.

    The noise floor is measured with ``rows`` rows. For outputs of another engine (``elsewhere``), whose sums have
    another order, it is also measured against transformers' own forward.
    """

    def __init__(self, engine: Engine, rows: int, *, elsewhere: bool = False) -> None:
        self._engine = engine
        self._rows = max(2, rows)
        self._elsewhere = elsewhere
        self._noise: Noise | None = None
        self._samples: list[tuple[Sequence[int], Sequence[int]]] = []

    def sample(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Offer an AR output for measuring the noise; the first few are used, when the noise is needed."""
        if self._noise is None and len(self._samples) < _SAMPLES and len(output) > 1:
            self._samples.append((prompt, output[:_SAMPLE_TOKENS]))

    @property
    def strict(self) -> bool:
        """Whether only identical tokens are lossless: fp32 on a CPU."""
        return self._engine.device.type == "cpu" and self._engine.model.dtype == torch.float32

    @property
    def noise(self) -> Noise:
        """Noise of the top-2 gap, measured on first use; 0 if there was nothing to measure it on."""
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
        """The graded divergence of ``other`` from AR's output; None if all tokens are equal."""
        at = first_divergence(ar, other)
        if at is None:
            return None
        distances = self._distances([*prompt, *ar[:at]], len(prompt))
        gap = sorted(distances.values())[1]
        parted = [ids[at] for ids in (ar, other) if at < len(ids)]
        flipped = len(parted) == 2 and all(distances.get(token, math.inf) <= self.noise.floor for token in parted)
        return Divergence(prompt_id, at, gap if math.isfinite(gap) else None, "numeric-tie" if flipped else "lossy")

    def _distances(self, ids: Sequence[int], prompt: int) -> dict[int, float]:
        """Distance of each of the best tokens from the best score after ``ids``, from a one-row step like AR's.

        ``prompt``: number of tokens that are the prompt's.
        """
        engine, slot = self._engine, self._engine.alloc()
        try:
            if len(ids) == 1:
                top = engine.prefill(slot, ids, top_k=_CONTENDERS).top
            else:
                engine.prefill(slot, ids[:-1], prompt=prompt)
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
        if self._elsewhere and self._engine.sampling.greedy:  # otherwise the scores would not be transformers' own
            changes += _changes(single, self._by_transformers(prompt, output))
        return changes, flips

    def _by_transformers(self, prompt: Sequence[int], output: Sequence[int]) -> list[Top]:
        """The best tokens after each of ``output[:-1]`` from the model without this engine."""
        ids = torch.tensor([[*prompt, *output[:-1]]], dtype=torch.int64, device=self._engine.device)
        with self._engine.detached(), torch.inference_mode():
            logits = self._engine.model(ids).logits[0, len(prompt) :].float()
        scores, tokens = logits.topk(min(_CONTENDERS, logits.shape[-1]))
        return list(zip(scores.tolist(), tokens.tolist(), strict=True))

    def _teacher_forced(self, prompt: Sequence[int], output: Sequence[int], rows: int) -> tuple[list[Top], int]:
        """(scores, ids) of the best tokens after each of ``output[:-1]``, ``rows`` at a time, and how often a chain
        diverged before its end."""
        engine, slot = self._engine, self._engine.alloc()
        found: list[Top] = []
        at = flips = 0
        try:
            engine.prefill(slot, prompt)
            while at < len(output) - 1:
                chain = output[at : min(at + rows, len(output) - 1)]
                result = engine.step({slot: TokenTree.chain(chain)}, top_k=2 if rows == 1 else _CONTENDERS)[slot]
                assert result.top is not None
                # A flip inside the chain: continue from where the tokens still agree.
                kept = len(result.path)
                scores, ids = (column[:kept].tolist() for column in result.top)
                found += zip(scores, ids, strict=True)
                flips += kept < len(chain)
                at += kept
        finally:
            engine.free(slot)
        return found, flips


def _changes(ours: Sequence[Top], others: Sequence[Top]) -> list[float]:
    """Difference between each gap of our two best scores and the gap of the same tokens elsewhere."""
    changes = []
    for (scores, ids), (other_scores, other_ids) in zip(ours, others, strict=True):
        other = dict(zip(other_ids, other_scores, strict=True))
        first, second = (other.get(token) for token in ids[:2])
        if first is not None and second is not None:
            change = abs(scores[0] - scores[1] - (first - second))
            # Infinite if the runner-up passes the top-p filter on one side only; that is not noise of a score.
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
        # If everything must be exact and is, the noise need not be measured.
        graded[label] = tally(found, grader.noise if any(found) or not grader.strict else None)
    return graded
