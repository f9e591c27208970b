"""Choose the configurations that a sweep decodes next: all of them, or fewer as slow ones are dropped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from specbench.analysis import Many, blocks_of, minimum_clusters
from specbench.results import BASELINE, MethodSpec
from specbench.sweeps.measured import Measured

Kind = Literal["grid", "halving"]

#: Blocks between two evaluations of the intervals; the same for any number of workers, so that all stop alike.
LOOK_EVERY = 4


@dataclass(frozen=True)
class Round:
    """Work that may be done in any order; all configurations decode each block of prompts one right after another."""

    labels: tuple[str, ...]
    blocks: tuple[tuple[str, ...], ...]


@dataclass
class Search:
    """The rounds of one sweep at one concurrency.

    Attributes:
        kind: "grid" decodes every prompt with every cell; "halving" drops the slower half after each rung, which has
            twice the prompts of the one before (successive halving, Jamieson and Talwalkar 2016).
        until: a configuration stops when the half width of its speedup's interval is at most this share of the speedup.
        stopped: label -> "halved", "interval" or "failed".
        lossy: labels of methods that write their own text: none of them is the best or is dropped for its speed.
    """

    labels: Sequence[str]
    prompts: Sequence[str]
    held_out: Sequence[str] = ()
    concurrency: int = 1
    kind: Kind = "grid"
    until: float | None = None
    stopped: dict[str, str] = field(default_factory=dict)
    lossy: frozenset[str] = frozenset()

    def rounds(self, measured: Measured) -> Iterator[Round]:
        """Yield the rounds; a round's results must be in ``measured`` before the next is taken."""
        seen = list[str]()
        for rung, blocks in enumerate(self._rungs()):
            if rung:  # a configuration with a narrow interval waits for the others and is not dropped
                raced = [label for label in self._running() if label not in self.lossy]
                kept = {*measured.ranked(raced, self._before(rung))[: math.ceil(len(raced) / 2)], *self.lossy}
                self.stopped |= {label: "halved" for label in self._running() if label not in kept}
            looks = len(blocks) if self.until is None else LOOK_EVERY
            for at in range(0, len(blocks), looks):
                if not self._running():
                    break
                taken = tuple(blocks[at : at + looks])
                yield Round((BASELINE, *self._running()), taken)
                seen += [prompt for block in taken for prompt in block]
                # Ignore later measurements of a killed command or one without a limit, so that a repeated command stops
                # alike. Some of those that ran may have failed in the meantime.
                self.stopped |= {label: "interval" for label in self._running() if self._narrow(measured, label, seen)}
        best = self.best(measured)
        if best is not None and self.held_out:
            yield Round((BASELINE, best), tuple(blocks_of(self.held_out, self.concurrency)))

    def finalists(self) -> list[str]:
        """The configurations that may be the best: not dropped, not failed, and with the baseline's text."""
        ended = ("halved", "failed")
        return [each for each in self.labels if self.stopped.get(each) not in ended and each not in self.lossy]

    def best(self, measured: Measured) -> str | None:
        """The configuration with the highest speedup over AR; None before anything is measured."""
        ranked = measured.ranked(self.finalists(), self.prompts)
        return ranked[0] if ranked and measured.speedup(ranked[0], prompts=self.prompts) is not None else None

    def found(self, measured: Measured) -> Many:
        """Compare the configurations; dropped or failed ones cannot be the best."""
        whole = [label for label in self.labels if self.stopped.get(label) != "failed"]
        return measured.together(whole, self.prompts, self.finalists())

    def _rungs(self) -> list[list[tuple[str, ...]]]:
        """The blocks of prompts that each rung adds; the last rung ends at the last prompt.

        The first rung has as many blocks as an interval needs: on fewer, dropping would be chance.
        """
        blocks = blocks_of(self.prompts, self.concurrency)
        least = minimum_clusters()
        if self.kind == "grid" or len(self.labels) < 2 or len(blocks) < 2 * least:
            return [blocks]
        count = min(math.ceil(math.log2(len(self.labels))), int(math.log2(len(blocks) / least)))
        ends = [math.ceil(len(blocks) / 2 ** (count - rung)) for rung in range(count + 1)]
        return [blocks[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _before(self, rung: int) -> list[str]:
        return [prompt for blocks in self._rungs()[:rung] for block in blocks for prompt in block]

    def _running(self) -> list[str]:
        return [label for label in self.labels if label not in self.stopped]

    def _narrow(self, measured: Measured, label: str, prompts: Sequence[str]) -> bool:
        if self.until is None:
            return False
        ratio = measured.speedup(label, prompts=prompts)
        if ratio is None or ratio.interval is None:
            return False
        return (ratio.interval.high - ratio.interval.low) / 2 <= self.until * ratio.value


def lossy_labels(methods: Iterable[MethodSpec]) -> frozenset[str]:
    """Labels of methods that write their own text instead of the baseline's."""
    return frozenset(spec.label for spec in methods if not spec.lossless)
