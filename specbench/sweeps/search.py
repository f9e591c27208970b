"""Search: which cells a sweep decodes next, all of them, or fewer as the slow ones fall out. No torch, no clock."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from specbench.results import BASELINE, RequestRecord
from specbench.results.stats import Ratio, paired_ratio

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
        found[key] = (seconds + record.decoding_s(self._shared), tokens + record.output_tokens - 1)

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


Kind = Literal["grid", "halving"]

#: Blocks between two looks at the intervals. The same for any number of workers, so that all stop at the same prompt.
LOOK_EVERY = 4


@dataclass(frozen=True)
class Round:
    """Work that can be done in any order.

    Attributes:
        labels: the cells, plain decoding first.
        blocks: prompt ids; each block is decoded by all the cells, one right after the other.
    """

    labels: tuple[str, ...]
    blocks: tuple[tuple[str, ...], ...]


@dataclass
class Search:
    """The rounds of one sweep at one concurrency.

    Attributes:
        labels: of the cells, plain decoding left out.
        prompts: to choose by, in the order in which they are used.
        held_out: to judge the chosen one by; none of ``prompts``.
        block: prompts of a block.
        kind: "grid" decodes every prompt with every cell; "halving" drops the slower half after each of its rungs,
            which have twice the prompts of the one before (successive halving, Jamieson and Talwalkar 2016).
        until: a cell stops when the half width of its speedup's interval is at most this share of the speedup.
        stopped: label -> why it was not decoded to the end, "halved" or "interval".
    """

    labels: Sequence[str]
    prompts: Sequence[str]
    held_out: Sequence[str] = ()
    block: int = 1
    kind: Kind = "grid"
    until: float | None = None
    stopped: dict[str, str] = field(default_factory=dict)

    def rounds(self, measured: Measured) -> Iterator[Round]:
        """The rounds; what one has measured has to be in ``measured`` before the next is taken."""
        alive, seen = list(self.labels), list[str]()
        for rung, prompts in enumerate(self._rungs()):
            if rung:
                kept = set(measured.ranked(alive, self._before(rung))[: math.ceil(len(alive) / 2)])
                self.stopped |= {label: "halved" for label in alive if label not in kept}
                alive = [label for label in alive if label in kept]
            blocks = self._blocks(prompts)
            looks = len(blocks) if self.until is None else LOOK_EVERY
            for at in range(0, len(blocks), looks):
                running = [label for label in alive if label not in self.stopped]
                if not running:
                    break
                taken = tuple(blocks[at : at + looks])
                yield Round((BASELINE, *running), taken)
                seen += [prompt for block in taken for prompt in block]
                # Not what a killed command or one without a limit has measured further on: a repeated one stops alike.
                self.stopped |= {label: "interval" for label in running if self._narrow(measured, label, seen)}
        best = self.best(measured)
        if best is not None and self.held_out:
            yield Round((BASELINE, best), tuple(self._blocks(self.held_out)))

    def finalists(self) -> list[str]:
        """The cells that halving has not dropped."""
        return [label for label in self.labels if self.stopped.get(label) != "halved"]

    def best(self, measured: Measured) -> str | None:
        """The cell with the highest speedup over plain decoding; None while nothing is measured."""
        ranked = measured.ranked(self.finalists(), self.prompts)
        return ranked[0] if ranked and measured.speedup(ranked[0], prompts=self.prompts) is not None else None

    def within_noise(self, measured: Measured) -> list[str]:
        """The cells that the prompts do not tell apart from the best one."""
        best = self.best(measured)
        return [] if best is None else measured.within_noise(best, self.finalists(), self.prompts)

    def _rungs(self) -> list[Sequence[str]]:
        """The prompts that each rung adds; the last one's end at the last prompt."""
        if self.kind == "grid" or len(self.labels) < 2:
            return [self.prompts]
        count = min(math.ceil(math.log2(len(self.labels))), int(math.log2(len(self.prompts))) if self.prompts else 0)
        ends = [math.ceil(len(self.prompts) / 2 ** (count - rung)) for rung in range(count + 1)]
        return [self.prompts[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _before(self, rung: int) -> list[str]:
        return [prompt for prompts in self._rungs()[:rung] for prompt in prompts]

    def _blocks(self, prompts: Sequence[str]) -> list[tuple[str, ...]]:
        return [tuple(prompts[at : at + self.block]) for at in range(0, len(prompts), self.block)]

    def _narrow(self, measured: Measured, label: str, prompts: Sequence[str]) -> bool:
        if self.until is None:
            return False
        ratio = measured.speedup(label, prompts=prompts)
        if ratio is None or ratio.interval is None:
            return False
        return (ratio.interval.high - ratio.interval.low) / 2 <= self.until * ratio.value
