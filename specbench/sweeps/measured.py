"""Costs of a sweep's configurations on every prompt so far, and what follows from them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from specbench.analysis import Many, Paired, Ratio, many, paired_ratio, timing_units
from specbench.results import BASELINE, RequestRecord

_SEED = 0  # seed of the bootstrap: equal records give equal decisions

_Cost = tuple[float, int]  # decode seconds, tokens after the first


class Measured:
    """Decode seconds (shares of shared time) and tokens of every configuration on every prompt, its turns together."""

    def __init__(self, shared: bool) -> None:
        self._shared = shared
        # label -> (prompt, repeat) -> cost; the repeat identifies the AR pass measured with it
        self._costs: dict[str, dict[tuple[str, int], _Cost]] = defaultdict(dict)
        self._stretches: dict[str, list[tuple[str, int]]] = defaultdict(list)

    def add(self, record: RequestRecord) -> None:
        """Add a finished request."""
        key, found = (record.prompt_id, record.repeat), self._costs[record.method]
        seconds, tokens = found.get(key, (0.0, 0))
        found[key] = (seconds + record.decoding_s(self._shared), tokens + record.decoded_tokens)
        self._stretches[record.method].append((record.prompt_id, record.segment))

    def speedup(self, label: str, prompts: Iterable[str] | None = None) -> Ratio | None:
        """Pooled seconds per token of AR over a configuration's, on the (given) prompts that both have in its pass."""
        keys, other, mine = self._pairs(label, prompts)
        if not keys:
            return None
        unit = self._units([BASELINE, label])
        return paired_ratio(_columns(other), _columns(mine), seed=_SEED, clusters=[unit[prompt] for prompt, _ in keys])

    def ranked(self, labels: Sequence[str], prompts: Iterable[str] | None = None) -> list[str]:
        """Labels by speedup over AR, fastest first; equal ones in the given order."""
        chosen = None if prompts is None else list(prompts)
        return sorted(labels, key=lambda label: self._rank(label, chosen))

    def together(
        self, labels: Sequence[str], prompts: Iterable[str] | None = None, candidates: Sequence[str] | None = None
    ) -> Many:
        """Compare configurations, each over AR in its own pass: intervals, and which ones may be best.

        Only ``candidates`` (default: all) may be the best; configurations with fewer prompts are compared on those.
        """
        chosen = None if prompts is None else list(prompts)
        pairs = {label: self._pairs(label, chosen) for label in labels}
        unit = self._units([BASELINE, *labels])
        rows = {
            label: Paired(_columns(other), _columns(mine), [unit[prompt] for prompt, _ in keys])
            for label, (keys, other, mine) in pairs.items()
            if keys
        }
        return many(rows, seed=_SEED, candidates=candidates)

    def _units(self, labels: Iterable[str]) -> dict[str, str]:
        """The independently timed units: prompts, or blocks of prompts stepped together."""
        return dict(timing_units([self._stretches[label] for label in labels], shared=self._shared))

    def _pairs(
        self, label: str, prompts: Iterable[str] | None
    ) -> tuple[list[tuple[str, int]], list[_Cost], list[_Cost]]:
        """The units that a configuration and AR both have, with AR's costs and the configuration's costs."""
        mine, other = self._costs.get(label, {}), self._costs.get(BASELINE, {})
        wanted = None if prompts is None else set(prompts)
        keys = sorted(key for key in mine.keys() & other.keys() if wanted is None or key[0] in wanted)
        return keys, [other[key] for key in keys], [mine[key] for key in keys]

    def _rank(self, label: str, prompts: Sequence[str] | None) -> float:
        """Smaller is faster. Without intervals, which would take minutes for a thousand configurations."""
        _, other, mine = self._pairs(label, prompts)
        (plain_s, plain_tokens), (s, tokens) = (map(sum, _columns(costs)) for costs in (other, mine))
        known = plain_s * plain_tokens * s * tokens > 0
        return -(plain_s * tokens) / (plain_tokens * s) if known else math.inf


def _columns(costs: Sequence[_Cost]) -> tuple[list[float], list[float]]:
    return [seconds for seconds, _ in costs], [float(tokens) for _, tokens in costs]
