"""Search: which cells a sweep decodes next, all of them, or fewer as the slow ones fall out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from specbench.analysis import Many, blocks_of, minimum_clusters
from specbench.results import BASELINE
from specbench.sweeps.measured import Measured

Kind = Literal["grid", "halving"]

#: Blocks between two looks at the intervals. The same for any number of workers, so that all stop at the same prompt.
LOOK_EVERY = 4


@dataclass(frozen=True)
class Round:
    """Work in any order; each block of prompts is decoded by all the cells, one right after the other."""

    labels: tuple[str, ...]
    blocks: tuple[tuple[str, ...], ...]


@dataclass
class Search:
    """The rounds of one sweep at one concurrency.

    Attributes:
        kind: "grid" decodes every prompt with every cell; "halving" drops the slower half after each rung, which has
            twice the prompts of the one before (successive halving, Jamieson and Talwalkar 2016).
        until: a cell stops when the half width of its speedup's interval is at most this share of the speedup.
        stopped: label -> "halved", "interval" or "failed".
    """

    labels: Sequence[str]
    prompts: Sequence[str]
    held_out: Sequence[str] = ()
    concurrency: int = 1
    kind: Kind = "grid"
    until: float | None = None
    stopped: dict[str, str] = field(default_factory=dict)

    def rounds(self, measured: Measured) -> Iterator[Round]:
        """The rounds; what one has measured has to be in ``measured`` before the next is taken."""
        alive, seen = list(self.labels), list[str]()
        for rung, blocks in enumerate(self._rungs()):
            running = [label for label in alive if label not in self.stopped]
            if rung:  # what is known well enough waits for the others, and is not dropped for waiting
                kept = set(measured.ranked(running, self._before(rung))[: math.ceil(len(running) / 2)])
                self.stopped |= {label: "halved" for label in running if label not in kept}
                alive = [label for label in alive if self.stopped.get(label) != "halved"]
            looks = len(blocks) if self.until is None else LOOK_EVERY
            for at in range(0, len(blocks), looks):
                running = [label for label in alive if label not in self.stopped]
                if not running:
                    break
                taken = tuple(blocks[at : at + looks])
                yield Round((BASELINE, *running), taken)
                seen += [prompt for block in taken for prompt in block]
                # Not what a killed command or one without a limit has measured further on: a repeated one stops alike.
                narrow = [label for label in running if label not in self.stopped]  # some may have failed meanwhile
                self.stopped |= {label: "interval" for label in narrow if self._narrow(measured, label, seen)}
        best = self.best(measured)
        if best is not None and self.held_out:
            yield Round((BASELINE, best), tuple(blocks_of(self.held_out, self.concurrency)))

    def finalists(self) -> list[str]:
        """The cells that halving has not dropped, and that have not failed."""
        return [label for label in self.labels if self.stopped.get(label) not in ("halved", "failed")]

    def best(self, measured: Measured) -> str | None:
        """The cell with the highest speedup over plain decoding; None while nothing is measured."""
        ranked = measured.ranked(self.finalists(), self.prompts)
        return ranked[0] if ranked and measured.speedup(ranked[0], prompts=self.prompts) is not None else None

    def found(self, measured: Measured) -> Many:
        """What the cells say together; those that were dropped or failed cannot be the best."""
        whole = [label for label in self.labels if self.stopped.get(label) != "failed"]
        return measured.together(whole, self.prompts, self.finalists())

    def _rungs(self) -> list[list[tuple[str, ...]]]:
        """The blocks of prompts that each rung adds; the last one's end at the last prompt.

        The first rung has as many as an interval takes: on fewer, what drops a cell would be luck.
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

    def _narrow(self, measured: Measured, label: str, prompts: Sequence[str]) -> bool:
        if self.until is None:
            return False
        ratio = measured.speedup(label, prompts=prompts)
        if ratio is None or ratio.interval is None:
            return False
        return (ratio.interval.high - ratio.interval.low) / 2 <= self.until * ratio.value
