"""What a sweep has measured so far, as far as a search has to know it. No torch."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from specbench.records import BASELINE, RequestRecord
from specbench.stats import Ratio, paired_ratio

_SEED = 0  # of the bootstrap: equal records give equal decisions

_Cost = tuple[float, int]  # decode seconds, tokens after the first


class Measured:
    """Decode seconds and tokens of every cell on every prompt, its turns together.

    Args:
        shared: the sequences shared the engine, so a request's share of its time counts.
    """

    def __init__(self, shared: bool) -> None:
        self._shared = shared
        # label -> (prompt, repeat) -> cost; the repeat tells which AR pass was measured beside it
        self._costs: dict[str, dict[tuple[str, int], _Cost]] = defaultdict(dict)

    def add(self, record: RequestRecord) -> None:
        """Takes a finished request."""
        key, found = (record.prompt_id, record.repeat), self._costs[record.method]
        seconds, tokens = found.get(key, (0.0, 0))
        found[key] = (seconds + record.decoding_s(self._shared), tokens + record.n_out - 1)

    def speedup(self, label: str, over: str = BASELINE, prompts: Iterable[str] | None = None) -> Ratio | None:
        """Pooled seconds per token of ``over`` over those of ``label``, on the prompts that both have.

        Args:
            label: a cell.
            over: another, or plain decoding.
            prompts: count only these.

        Returns:
            None where they share no prompt.
        """
        keys, other, mine = self._pairs(label, over, prompts)
        if not keys:
            return None
        return paired_ratio(_columns(other), _columns(mine), seed=_SEED, clusters=[prompt for prompt, _ in keys])

    def ranked(self, labels: Sequence[str], prompts: Iterable[str] | None = None) -> list[str]:
        """Labels by speedup over plain decoding, the fastest first; equal ones in the given order."""
        chosen = None if prompts is None else list(prompts)
        return sorted(labels, key=lambda label: self._rank(label, chosen))

    def within_noise(self, best: str, labels: Sequence[str], prompts: Iterable[str] | None = None) -> list[str]:
        """The labels that these prompts do not tell apart from ``best``, itself included.

        Two cells are told apart when the paired interval of their ratio leaves out 1. Where there are too few prompts
        for an interval, nothing is told apart.
        """
        chosen = None if prompts is None else list(prompts)
        found = []
        for label in labels:
            ratio = None if label == best else self.speedup(best, over=label, prompts=chosen)
            if ratio is None or ratio.interval is None or ratio.interval.low <= 1.0 <= ratio.interval.high:
                found.append(label)
        return found

    def _pairs(
        self, label: str, over: str, prompts: Iterable[str] | None
    ) -> tuple[list[tuple[str, int]], list[_Cost], list[_Cost]]:
        """What both have, and its costs: of ``over``, then of ``label``."""
        mine, other = self._costs.get(label, {}), self._costs.get(over, {})
        if over != BASELINE:  # two cells may come from different passes
            mine, other = _by_prompt(mine), _by_prompt(other)
        wanted = None if prompts is None else set(prompts)
        keys = sorted(key for key in mine.keys() & other.keys() if wanted is None or key[0] in wanted)
        return keys, [other[key] for key in keys], [mine[key] for key in keys]

    def _rank(self, label: str, prompts: Sequence[str] | None) -> float:
        """The less, the faster. Without the interval, which a thousand cells would take minutes for."""
        _, other, mine = self._pairs(label, BASELINE, prompts)
        (plain_s, plain_tokens), (s, tokens) = (map(sum, _columns(costs)) for costs in (other, mine))
        known = plain_s * plain_tokens * s * tokens > 0
        return -(plain_s * tokens) / (plain_tokens * s) if known else math.inf


def _by_prompt(costs: dict[tuple[str, int], _Cost]) -> dict[tuple[str, int], _Cost]:
    merged: dict[tuple[str, int], _Cost] = {}
    for (prompt, _), (seconds, tokens) in costs.items():
        before = merged.get((prompt, 0), (0.0, 0))
        merged[prompt, 0] = (before[0] + seconds, before[1] + tokens)
    return merged


def _columns(costs: Sequence[_Cost]) -> tuple[list[float], list[float]]:
    return [seconds for seconds, _ in costs], [float(tokens) for _, tokens in costs]
