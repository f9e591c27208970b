"""How often the intervals and tests of ``specbench.analysis.stats`` are right, on simulated data with known truth.

``python benchmarks/interval_coverage.py [EXPERIMENTS]`` prints the figures that their docstrings state. The simulated
worlds have the difficulties of benchmark data: lengths with heavy tails, speedups that depend on the length, correlated
turns of one prompt, requests delayed by a pause of the machine.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specbench.analysis.blocks import FILLINGS
from specbench.analysis.stats import Paired, many, paired_difference, paired_ratio, two_sample

Floats = npt.NDArray[np.float64]
Columns = tuple[Floats, Floats, Floats, Floats, npt.NDArray[np.int64]]  # seconds, tokens of both arms; prompt
World = Callable[[np.random.Generator, int], Columns]

SIZES = (6, 12, 20, 40, 164)
TRUTH_BLOCKS = 20_000
_STEP_S = 0.025


def lognormal(generator: np.random.Generator, prompts: int) -> Columns:
    """World in which lengths vary a lot and speedups of prompts a little."""
    tokens = generator.lognormal(5.0, 0.7, prompts)
    seconds = tokens * _STEP_S * generator.lognormal(0.0, 0.05, prompts)
    return seconds, tokens, seconds / generator.lognormal(0.5, 0.25, prompts), tokens, np.arange(prompts)


def heavy(generator: np.random.Generator, prompts: int) -> Columns:
    """World in which a few answers have most of the tokens, up to a budget of 1,024, and long answers gain more."""
    tokens = np.minimum(np.round(generator.lognormal(4.5, 1.2, prompts)) + 1, 1024)
    seconds = tokens * _STEP_S * generator.lognormal(0.0, 0.05, prompts)
    gain = np.exp(0.5 + 0.125 * (np.log(tokens) - 4.5) + 0.35 * generator.standard_normal(prompts))
    return seconds, tokens, seconds / gain, tokens, np.arange(prompts)


def turns(generator: np.random.Generator, prompts: int) -> Columns:
    """World with two turns per prompt, correlated in length and speedup; answers differ from AR's in length."""
    of = np.repeat(np.arange(prompts), 2)
    length, gain = generator.lognormal(4.8, 0.6, prompts)[of], 0.3 * generator.standard_normal(prompts)[of]
    tokens = length * generator.lognormal(0.0, 0.4, of.size)
    others = tokens * generator.lognormal(0.0, 0.2, of.size)
    seconds = tokens * _STEP_S * generator.lognormal(0.0, 0.05, of.size)
    return (
        seconds,
        tokens,
        others * _STEP_S * np.exp(-0.4 - gain + 0.15 * generator.standard_normal(of.size)),
        others,
        of,
    )


def pauses(generator: np.random.Generator, prompts: int) -> Columns:
    """World that compares a method with itself: noise of 2 %, and one request in twenty takes 30 % longer."""
    tokens = generator.integers(8, 33, prompts).astype(np.float64)

    def arm() -> Floats:
        slow = np.where(generator.random(prompts) < 0.05, 1.3, 1.0)
        return tokens * _STEP_S * slow * generator.lognormal(0.0, 0.02, prompts)

    return arm(), tokens, arm(), tokens, np.arange(prompts)


WORLDS: Mapping[str, World] = {"lognormal": lognormal, "heavy": heavy, "turns": turns, "pauses": pauses}


def stepped(concurrency: int) -> World:
    """World in which sequences are stepped together in blocks; a row of data is a block, because blocks are timed.

    Slots refill as answers end, so a block ends with some empty slots. A step takes longer the more sequences it
    serves, and the machine's speed differs by up to a tenth between blocks.
    """

    def world(generator: np.random.Generator, blocks: int) -> Columns:
        prompts = FILLINGS * concurrency
        tokens = np.ceil(generator.lognormal(4.0, 0.7, (blocks, prompts)))
        forwards = np.ceil(tokens / generator.lognormal(0.5, 0.25, (blocks, prompts)))
        machine = generator.lognormal(0.0, 0.03, (2, blocks))
        seconds = [[_together(row, concurrency) for row in arm] for arm in (tokens, forwards)]
        ar, mine = (np.array(arm) * slow for arm, slow in zip(seconds, machine, strict=True))
        return ar, tokens.sum(axis=1), 1.2 * mine, tokens.sum(axis=1), np.arange(blocks)

    return world


def _together(steps: Floats, concurrency: int) -> float:
    """Seconds of a block from the number of steps of each sequence, with ``concurrency`` slots."""
    free = [0.0] * concurrency
    spans = []
    for count in steps.tolist():
        begin = heapq.heappop(free)
        heapq.heappush(free, begin + count)
        spans.append((begin, begin + count))
    begins, ends = (np.sort(side) for side in zip(*spans, strict=True))
    at = np.unique(np.concatenate([begins, ends]))
    active = np.searchsorted(begins, at[:-1], side="right") - np.searchsorted(ends, at[:-1], side="right")
    return float((np.diff(at) * _STEP_S * (1 + 0.05 * active)).sum())


@cache
def truth(world: World, seed: int = 1, prompts: int = 2_000_000) -> float:
    """The true ratio of expectations that experiments in a world estimate."""
    a_time, a_tokens, b_time, b_tokens, _ = world(np.random.default_rng(seed), prompts)
    return float(a_time.sum() * b_tokens.sum() / (a_tokens.sum() * b_time.sum()))


def coverage(
    world: World, prompts: int, experiments: int, seed: int = 0, draws: int = 1_000, of: int = 2_000_000
) -> float:
    """Share of experiments whose 95 % interval contains the truth, which is computed from ``of`` prompts."""
    generator, right, hits = np.random.default_rng(seed), truth(world, prompts=of), 0
    for experiment in range(experiments):
        a_time, a_tokens, b_time, b_tokens, unit = world(generator, prompts)
        interval = paired_ratio(
            (a_time.tolist(), a_tokens.tolist()),
            (b_time.tolist(), b_tokens.tolist()),
            seed=experiment,
            draws=draws,
            clusters=unit.tolist(),
        ).interval
        hits += interval is not None and interval.low <= right <= interval.high
    return hits / experiments


class Table:
    """Rows with speedups over one AR row on the same prompts, lengths as in :func:`lognormal`.

    Each prompt has a random effect on all rows (σ 0.15 of the logarithm) and one on each single row (σ 0.2).

    Args:
        speedups: true speedup of each row.
    """

    def __init__(self, speedups: Sequence[float]) -> None:
        self.truths = {f"row {at}": speedup for at, speedup in enumerate(speedups)}

    def experiment(self, generator: np.random.Generator, prompts: int) -> dict[str, Paired]:
        """Simulate the rows of one run."""
        tokens = generator.lognormal(5.0, 0.7, prompts)
        ar = tokens * _STEP_S * generator.lognormal(0.0, 0.05, prompts)
        common, level = generator.normal(0.0, 0.15, prompts), (0.15**2 + 0.2**2) / 2
        made = {}
        for label, speedup in self.truths.items():
            # The times have mean 1 / speedup, so that the ratio of sums of seconds is the speedup.
            slow = np.exp(common + generator.normal(0.0, 0.2, prompts) - level) / speedup
            arms = [(seconds.tolist(), tokens.tolist()) for seconds in (ar, ar * slow)]
            made[label] = Paired(arms[0], arms[1], list(range(prompts)))
        return made


class Errors(NamedTuple):
    """Shares of experiments, except ``as_good``.

    Attributes:
        faster, slower: experiments in which a row of equal speed was called faster, or slower.
        covered: experiments in which the best row's interval contained its true speedup.
        kept: experiments in which the true best row was among the rows as good as the best.
        as_good: mean number of rows as good as the best.
    """

    faster: float
    slower: float
    covered: float
    kept: float
    as_good: float


def best_of_many(table: Table, prompts: int, experiments: int, seed: int = 0, draws: int = 1_000) -> Errors:
    """Test joint intervals and comparisons with the best on tables whose truth is known."""
    generator, sums = np.random.default_rng(seed), np.zeros(5)
    truths = table.truths
    first = max(truths, key=lambda label: truths[label])
    for experiment in range(experiments):
        rows = table.experiment(generator, prompts)
        found = many(rows, seed=experiment, draws=draws)
        equal = [found.intervals[label] for label, speedup in truths.items() if speedup == 1.0]
        assert found.best is not None
        best = found.intervals[found.best]
        sums += (
            any(each.low > 1 for each in equal),
            any(each.high < 1 for each in equal),
            best.low <= truths[found.best] <= best.high,
            first in found.as_good,
            len(found.as_good),
        )
    return Errors(*(sums / experiments).tolist())


def share_coverage(
    gained: float, lost: float, prompts: int, experiments: int, seed: int = 0, draws: int = 1_000
) -> float:
    """Coverage for the difference of two shares; a prompt is gained or lost with these probabilities."""
    generator, hits = np.random.default_rng(seed), 0
    for experiment in range(experiments):
        difference = generator.choice([1, -1, 0], prompts, p=[gained, lost, 1 - gained - lost])
        mine, other = (difference > 0).tolist(), (difference < 0).tolist()
        interval = paired_difference(mine, other, seed=experiment, draws=draws).interval
        hits += interval is not None and interval.low <= gained - lost <= interval.high
    return hits / experiments


class Language:
    """Random texts of six token ids; the next token depends on prompt and last two tokens: shape [8, 7, 7, 6]."""

    def __init__(self, temperature: float = 1.0) -> None:
        scores = np.random.default_rng(5).standard_normal((8, 7, 7, 6)) * 1.5
        self.probabilities = np.exp(scores / temperature)
        self.probabilities /= self.probabilities.sum(-1, keepdims=True)

    def texts(self, generator: np.random.Generator, answers: int, length: int = 12) -> dict[str, list[list[int]]]:
        """Generate ``answers`` answers to each prompt."""
        sums, found = self.probabilities.cumsum(-1), {}
        for prompt in range(sums.shape[0]):
            before, last = np.full(answers, 6), np.full(answers, 6)
            written = []
            for _ in range(length):
                token = (generator.random(answers)[:, None] > sums[prompt, before, last, :-1]).sum(-1)
                written.append(token)
                before, last = last, token
            found[str(prompt)] = np.stack(written, 1).tolist()
        return found

    def distance(self, other: Language) -> float:
        """Mean total variation distance of the next token's distributions."""
        return float(np.abs(self.probabilities - other.probabilities).sum(-1).mean() / 2)


def called_different(
    other: Language, experiments: int, answers: int = 60, level: float = 0.05, permutations: int = 399, seed: int = 0
) -> float:
    """Share of experiments in which the two-sample test distinguishes ``other`` from the language at temperature 1."""
    generator, base, found = np.random.default_rng(seed), Language(), 0
    for experiment in range(experiments):
        ours, theirs = other.texts(generator, answers), base.texts(generator, answers)
        tested = two_sample(ours, theirs, seed=experiment, permutations=permutations, level=level)
        found += tested.verdict == "different"
    return found / experiments


def main(experiments: int, sizes: Sequence[int] = SIZES) -> None:
    print(f"coverage of the 95% interval of a speedup, {experiments} experiments each")
    for name, world in WORLDS.items():
        print(f"{name:10}", *(f"{n}: {coverage(world, n, experiments):.1%}" for n in sizes), sep="  ", flush=True)
    for concurrency in (4, 16):
        found = (f"{n}: {coverage(stepped(concurrency), n, experiments, of=TRUTH_BLOCKS):.1%}" for n in (6, 12, 20, 40))
        print(f"blocks of {concurrency} together", *found, sep="  ", flush=True)
    print("tables of rows: false faster, false slower, best row covered, best kept, rows as good")
    for prompts in (8, 20, 40):
        for name, speedups in (("14 equal", [1.0] * 14), ("5, one 2% ahead", [1.02, 1.0, 1.0, 1.0, 1.0])):
            errors = best_of_many(Table(speedups), prompts, experiments)
            print(f"{name}, {prompts} prompts", *(f"{share:.3f}" for share in errors), sep="  ", flush=True)
    print("coverage of the 95% interval of a difference of two shares")
    for gained, lost in ((0.02, 0.02), (0.05, 0.01), (0.1, 0.1), (0.25, 0.1)):
        found = (f"{n}: {share_coverage(gained, lost, n, experiments):.1%}" for n in sizes)
        print(f"+{gained:.0%} -{lost:.0%}", *found, sep="  ", flush=True)
    print("two-sample test at 5%: distance, and share of experiments that detect it")
    for temperature in (1.0, 0.8, 0.7, 0.6):
        other = Language(temperature)
        print(f"{other.distance(Language()):.3f}  {called_different(other, experiments // 10):.1%}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 500)
