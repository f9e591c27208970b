"""Settings of a part: how much to measure, the figures of earlier parts, and whether it is a rehearsal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.gpu_check.records import Journal

if TYPE_CHECKING:
    from specbench.hardware.gpus import Gpu
    from specbench.hardware.roofline import Ceilings


@dataclass(frozen=True)
class Size:
    """How much to measure.

    Attributes:
        context: tokens of a prompt.
        tokens: tokens of an answer.
        rows: rows of the widest step.
        budgets: rows of JetSpec's trees.
        acceptance: simulated tokens per forward.
        answers, answer_tokens: number and length of answers in the losslessness check; many short ones, because an
            answer ends at its first tie.
        replays: replays of a step under the profiler.
        concurrency: numbers of sequences stepped together.
        crowd_context: tokens of the prompts of these sequences.
        contexts: cached tokens at which attention is timed.
        attention_rows: rows with which attention is timed.
        real_tokens, real_prompts: tokens per answer and number of prompts for a real model.
    """

    context: int = 1024
    tokens: int = 128
    rows: int = 512
    budgets: Sequence[int] = (64, 128)
    acceptance: Sequence[float] = (2, 4, 6)
    answers: int = 16
    answer_tokens: int = 48
    replays: int = 20
    concurrency: Sequence[int] = (1, 2, 4, 8, 16, 32, 64)
    crowd_context: int = 512
    contexts: Sequence[int] = (1024, 4096, 16384)
    attention_rows: int = 64
    real_tokens: int = 96
    real_prompts: int = 6


#: Sizes of a rehearsal: everything runs once or twice.
TINY = Size(
    context=20, tokens=8, rows=4, budgets=(4, 6), acceptance=(2, 3), answers=2,
    answer_tokens=8,
    replays=2, concurrency=(1, 2),
    crowd_context=12, contexts=(16, 40), attention_rows=4, real_tokens=4, real_prompts=1,
)  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """Settings and earlier figures for a part.

    Attributes:
        journal: journal of the check.
        rehearse: use tiny models on a CPU and record steps instead of capturing them; the figures mean nothing.
        model: the real model to measure; empty if there is none.
    """

    journal: Journal
    rehearse: bool = False
    model: str = ""
    size: Size = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", TINY if self.rehearse else Size())

    @property
    def folder(self) -> Path:
        """Folder of the check, in which a part may write files."""
        return self.journal.path.parent

    @property
    def dtype(self) -> str:
        """Precision of dummy weights, as torch names it."""
        return "float32" if self.rehearse else "bfloat16"

    @property
    def ceilings(self) -> Ceilings | None:
        """Ceilings from the first part, or from the datasheet of this GPU; None if both are unknown."""
        from benchmarks.gpu_check.nodes import ceilings_of
        from specbench.hardware.roofline import Ceilings

        copy, flops = self.journal.find("copy"), self.journal.find("flops")
        if copy and flops:
            return Ceilings(bytes_per_s=copy * 1e9, flops_per_s=flops * 1e12)
        if self.card is None or not self.card.bf16:
            return None
        return ceilings_of(self.card, "bfloat16")

    @property
    def card(self) -> Gpu | None:
        """This GPU's entry in the table of GPUs; None if it has none, or if the device is only a slice of a GPU."""
        from specbench.hardware import gpus

        device = self.journal.last("device")
        return gpus.identify(device.get("name", ""), device.get("memory_bytes"))
