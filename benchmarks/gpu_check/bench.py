"""Bench: what a part is handed: how much to measure, figures of earlier parts, what to rehearse. No torch."""

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
    """How much is measured.

    Attributes:
        context: tokens of a prompt.
        tokens: of an answer.
        rows: of the widest step.
        budgets: rows of JetSpec's trees.
        acceptance: tokens a forward that are simulated.
        answers, answer_tokens: of the losslessness check; few tokens of many answers, since the first tie ends one.
        replays: of a step under the profiler.
        concurrency: sequences stepped together.
        crowd_context: tokens of their prompts.
        contexts: cached tokens behind which attention is timed.
        attention_rows: rows that it is timed with.
        real_tokens, real_prompts: of answers of a real model, and how many of them.
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


#: Of a rehearsal: everything happens once or twice.
TINY = Size(
    context=20, tokens=8, rows=4, budgets=(4, 6), acceptance=(2, 3), answers=2,
    answer_tokens=8,
    replays=2, concurrency=(1, 2),
    crowd_context=12, contexts=(16, 40), attention_rows=4, real_tokens=4, real_prompts=1,
)  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """What a part is handed.

    Attributes:
        journal: of the check.
        rehearse: tiny models on a CPU, steps recorded where they would be captured; no figure means anything.
        model: the real model of the part that has one; empty where there is none.
    """

    journal: Journal
    rehearse: bool = False
    model: str = ""
    size: Size = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", TINY if self.rehearse else Size())

    @property
    def folder(self) -> Path:
        """The folder of the check, for files of a part."""
        return self.journal.path.parent

    @property
    def dtype(self) -> str:
        """Precision of dummy weights, by torch's name."""
        return "float32" if self.rehearse else "bfloat16"

    @property
    def ceilings(self) -> Ceilings | None:
        """What the first part measured, or the datasheet of the GPU that is here; None where neither is known."""
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
        """The GPU of the table that is here; None where it is not one of them, or only a slice of one."""
        from specbench.hardware import gpus

        device = self.journal.last("device")
        return gpus.identify(device.get("name", ""), device.get("memory_bytes"))
