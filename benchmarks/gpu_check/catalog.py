"""Catalog: the parts of the check, the most valuable first, and the time that each may take. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A part of the check, run in a process of its own.

    Attributes:
        name: what ``--only`` takes.
        title: of its section on the page.
        seconds: that it is expected to take on an H200; it is ended after twice as many.
        target: ``module:function``, called with a :class:`benchmarks.gpu_check.bench.Bench`; yields figures.
        predicts: the module has ``predicted``, called with a :class:`benchmarks.gpu_check.predict.Known`; yields the
            figures that it predicts, without values.
    """

    name: str
    title: str
    seconds: float
    target: str
    predicts: bool = False

    @property
    def limit_s(self) -> float:
        return 2 * self.seconds


_PARTS = "benchmarks.gpu_check.parts"

#: Comes before the parts, whichever of them are asked for.
DEVICE = Part("device", "The device", 20, "benchmarks.gpu_check.device:run")

PARTS: Sequence[Part] = (
    Part("ceilings", "What the device does at best", 15, f"{_PARTS}.ceilings:run", True),
    Part("steps", "AR, and the step over 1 to 512 rows", 100, f"{_PARTS}.steps:run", True),
    Part("eager", "AR with graphs off, and transformers' own loop", 35, f"{_PARTS}.eager:run"),
    Part(
        "compiled",
        "The same step through torch.compile, and as transformers has it",
        60,
        f"{_PARTS}.compiled:run",
        True,
    ),
    Part("jetspec", "A round of JetSpec at simulated acceptance", 75, f"{_PARTS}.jetspec:run", True),
    Part("lossless", "AR's own text hidden in wild trees", 45, f"{_PARTS}.lossless:run"),
    Part("kernels", "Kernels of a step, by the profiler", 30, f"{_PARTS}.kernels:run", True),
    Part("concurrency", "Sequences stepped together", 50, f"{_PARTS}.concurrency:run", True),
    Part("attention", "Tree attention against SDPA and flash-attn", 40, f"{_PARTS}.attention:run", True),
    Part("model", "A real model on real prompts", 35, f"{_PARTS}.model:run"),
    Part("tests", "Chosen tests of the suite", 35, f"{_PARTS}.tests:run"),
)
