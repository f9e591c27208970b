"""Test whether two samplers have the same distribution of texts, for methods that do not use AR's noise."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from specbench.analysis.stats.interval import Floats

Texts = Mapping[str, Sequence[Sequence[int]]]  # prompt -> independent answers, as token ids

SamplesVerdict = Literal["different", "no difference shown", "too few samples"]

#: Fewest answers that must share a prefix before the tokens after it are compared.
_FEWEST = 10
_POWER = 0.8


@dataclass(frozen=True)
class TwoSample:
    """Result of a two-sample test.

    Attributes:
        detectable: total variation distance between next-token distributions that is detected with a power of 80%;
            None if no prefix is shared by enough answers.
    """

    p_value: float
    level: float
    contexts: int
    detectable: float | None
    answers: int

    @property
    def verdict(self) -> SamplesVerdict:
        """The verdict; "too few samples" without contexts to compare."""
        if self.detectable is None:
            return "too few samples"
        return "different" if self.p_value < self.level else "no difference shown"


def two_sample(ours: Texts, theirs: Texts, *, seed: int, permutations: int = 1_999, level: float = 0.01) -> TwoSample:
    """Test whether answers to the same prompts come from the same distribution.

    After each prefix that at least ten answers to a prompt share, the counts of next tokens are compared (chi-squared;
    tokens seen once are pooled). The sum over prefixes is compared with its values after randomly exchanging the labels
    of the answers within each prompt. Under the hypothesis all answers to a prompt are exchangeable, so the level is
    exact for any number of answers and any dependence between their tokens.

    ``detectable`` follows from the noncentral chi-squared distribution of the sum. Differences are detected only where
    answers still share prefixes, so low temperatures, few prompts and many seeds help. Simulated at a level of 5% with
    8 prompts and 60 answers per sampler over 12 tokens: a mean total variation of 7% is detected 39 times in 100, 11%
    95 times, 16% always, and identical samplers 5 times (``benchmarks/interval_coverage.py``).

    Args:
        ours, theirs: prompt -> token ids of its answers; prompts in only one of them are left out.

    Source: Phipson and Smyth, Statistical Applications in Genetics and Molecular Biology 9 (2010), for the p-value.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    sums = np.zeros(1 + permutations)
    contexts, freedom, information, answers = 0, 0, 0.0, 0
    for prompt in sorted(ours.keys() & theirs.keys()):
        mine, other = [list(map(tuple, side[prompt])) for side in (ours, theirs)]
        texts = [*mine, *other]
        answers += len(texts)
        truth = np.repeat((1.0, 0.0), (len(mine), len(other)))
        labels = np.stack([truth, *(generator.permutation(truth) for _ in range(permutations))])
        for members, categories in _contexts(texts):
            sums += _chi_squared(labels[:, members], categories)
            contexts += 1
            freedom += max(1, len(np.unique(categories)) - 1)
            first = truth[members].sum()
            # Tokens seen once are pooled, so they add no information here.
            information += (categories > 0).mean() * first * (members.size - first) / members.size
    beaten = int((sums[1:] >= sums[0] * (1 - 1e-9)).sum())  # equal splits may differ by rounding
    p_value = (1 + beaten) / (1 + permutations)
    return TwoSample(p_value, level, contexts, _detectable(freedom, information, level), answers)


def _contexts(texts: Sequence[tuple[int, ...]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Prefixes that enough texts share: indices of these texts, and the category of each next token (0: seen once)."""
    waiting = [list(range(len(texts)))]
    for at in range(max(map(len, texts), default=0)):
        deeper: list[list[int]] = []
        for members in waiting:
            followers: dict[int, list[int]] = defaultdict(list)
            for member in members:
                if at < len(texts[member]):
                    followers[texts[member][at]].append(member)
            sharing = [member for group in followers.values() for member in group]
            if len(sharing) < _FEWEST:
                continue
            often = [token for token, group in followers.items() if len(group) > 1]
            category = {token: number for number, token in enumerate(often, 1)}
            if often:
                yield np.array(sharing), np.array([category.get(texts[member][at], 0) for member in sharing])
            deeper += followers.values()
        waiting = [members for members in deeper if len(members) >= _FEWEST]


def _chi_squared(labels: Floats, categories: np.ndarray) -> Floats:
    """[p] statistics of p labellings [p, n] of n answers into two samplers; 0 if all labels are equal."""
    total, first = labels.shape[1], labels.sum(axis=1)
    counts = Counter(categories.tolist())
    found = np.zeros(labels.shape[0])
    for category, count in counts.items():
        seen = labels[:, categories == category].sum(axis=1)
        found += np.square(seen - count * first / total) / count
    both = first * (total - first)
    return np.divide(found * total**2, both, out=np.zeros_like(found), where=both > 0)


def _detectable(freedom: int, information: float, level: float) -> float | None:
    """The distance at which a chi-squared sum with these degrees of freedom is significant with 80% probability."""
    if not information:
        return None
    normal = NormalDist()
    above, power = normal.inv_cdf(1.0 - level) * math.sqrt(2 * freedom), normal.inv_cdf(_POWER)
    # The noncentrality λ solves λ = above + power · √(2 freedom + 4 λ).
    middle = above + 2 * power**2
    needed = middle + math.sqrt(middle**2 - above**2 + 2 * power**2 * freedom)
    distance = math.sqrt(needed / (4 * information))
    return distance if distance < 1 else None
